"""Prompts' keys and values: offered by the worker that computed them, taken by the one that decodes."""

import asyncio
import secrets
from dataclasses import dataclass
from math import prod
from threading import Lock

import torch

from chiasm.connectors.base import ITEM_SIZE_BYTES, Buffer, check_kv
from chiasm.engines.embedded.buffers import bytes_tensor, tensor_bytes
from chiasm.engines.embedded.handover import describe_kv, expected_kv
from chiasm.engines.embedded.language import LanguageStages
from chiasm.engines.embedded.sequence import PlannedPrompt
from chiasm.errors import OverloadedError
from chiasm.observability.receipt import StageClock
from chiasm.protocol.kv import KvHandle
from chiasm.workers.transfers import TensorMover


@dataclass(frozen=True)
class TakenKv:
    """Checked keys and values [layers, 2, kv_heads, num_tokens, head_dim], counted until they are released."""

    tensor: torch.Tensor
    num_bytes: int


class KvExchange:
    """Moves keys and values by a worker's transport; what waits for a slot is bounded."""

    def __init__(self, language: LanguageStages, mover: TensorMover, max_held_bytes: int) -> None:
        self._language = language
        self._mover = mover
        self._max_held_bytes = max_held_bytes
        self._lock = Lock()
        self.held_bytes = 0

    async def offer(self, prompt: PlannedPrompt, kv: torch.Tensor, clock: StageClock) -> KvHandle:
        """Offer a computed prompt under a key of its own. Raises `OverloadedError`."""
        with clock.stage("kv_transfer"):
            metadata = await asyncio.to_thread(describe_kv, prompt, kv)
            key = secrets.token_hex(16)
            offer = await self._mover.offer(key, tensor_bytes(kv), prompt.label, is_fresh=True)
        return KvHandle(
            connector=offer.connector,
            key=key,
            address=offer.address,
            metadata=metadata,
            expires_at_s=offer.expires_at_s,
        )

    async def take(self, handle: KvHandle, prompt: PlannedPrompt, clock: StageClock) -> TakenKv:
        """Take what another worker computed for exactly this prompt; to be released.

        It can be taken once: the producer is told. A second try has the prompt computed again, mostly from its cache.

        Raises:
            TransferError: It did not arrive, or is not what this worker's own plan says.
            OverloadedError: Too much waits for slots already.
        """
        expected = expected_kv(self._language.core, prompt)
        num_bytes = prod(expected.shape) * ITEM_SIZE_BYTES[expected.dtype]

        def check(data: Buffer) -> torch.Tensor:
            check_kv(handle.metadata, data, expected)
            return bytes_tensor(data, handle.metadata)

        self._reserve(num_bytes)
        try:
            with clock.stage("kv_transfer"):
                return TakenKv(await self._mover.take(handle, num_bytes, check, is_only_reader=True), num_bytes)
        except BaseException:
            self.release(num_bytes)
            raise

    def release(self, num_bytes: int) -> None:
        """The tensor was copied into its slots, or is wanted no more. Any thread may call."""
        with self._lock:
            self.held_bytes -= num_bytes

    def _reserve(self, num_bytes: int) -> None:
        with self._lock:
            if self.held_bytes and self.held_bytes + num_bytes > self._max_held_bytes:
                raise OverloadedError(
                    f"{self.held_bytes} bytes of keys and values wait for slots; {num_bytes} more do not fit"
                )
            self.held_bytes += num_bytes
