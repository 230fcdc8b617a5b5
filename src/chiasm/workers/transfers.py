"""A transport's blocking calls, made off the event loop and within the worker's limits."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import TypeVar

from chiasm.cache.label import CacheLabel
from chiasm.connectors.base import ITEM_SIZE_BYTES, Buffer, Transport
from chiasm.errors import HandleExpiredError, LayoutMismatchError, TransferError
from chiasm.observability.memory import MemoryPart
from chiasm.protocol.deletion import Deletion
from chiasm.protocol.kv import KvHandle
from chiasm.protocol.media import EmbeddingHandle
from chiasm.settings import TransferSettings

_THREADS = 16
"""Each waits for one tensor, at most `timeout_s`; a late one must not hold up the others."""

T = TypeVar("T")


@dataclass(frozen=True)
class Offer:
    """Where an offered tensor can be taken, and until when (Unix time)."""

    connector: str
    address: str
    expires_at_s: float


class TensorMover:
    """Offers tensors to other workers and takes theirs. Belongs to one event loop; cancelled calls end unheard."""

    def __init__(self, transport: Transport | None, settings: TransferSettings) -> None:
        self._transport = transport
        self._settings = settings
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="chiasm-transfer")
        self._labels: dict[str, tuple[CacheLabel, float]] = {}  # of offers, and when they end; the first in front
        self.num_taken = 0
        self.taken_bytes = 0

    @property
    def can_move(self) -> bool:
        """Whether there is a transport."""
        return self._transport is not None

    @property
    def num_offered(self) -> int:
        """Tensors that others may take now."""
        return 0 if self._transport is None else self._transport.num_offered

    def memory_parts(self) -> tuple[MemoryPart, ...]:
        """What is on offer."""
        if self._transport is None:
            return ()
        used, most = self._transport.offered_bytes, self._settings.max_bytes
        return (MemoryPart(name="offers", kind="shared", used_bytes=used, reserved_bytes=most),)

    async def offer(self, key: str, data: Buffer, label: CacheLabel, *, is_fresh: bool = False) -> Offer:
        """Offer a copy of contiguous bytes. Raises `OverloadedError`.

        Args:
            key: Names the tensor.
            data: The bytes.
            label: By what it can be deleted.
            is_fresh: Nobody else offers this key: when the caller is cancelled, the offer is withdrawn.
        """
        transport, ttl_s = self._required(), self._settings.ttl_s
        expires_at_s = time.time() + ttl_s
        self._note(key, label)
        putting = self._threads.submit(transport.put, key, data, ttl_s=ttl_s)
        try:
            address = await asyncio.wrap_future(putting)
        except asyncio.CancelledError:
            if is_fresh:
                putting.add_done_callback(lambda _: transport.drop(key))
            raise
        if key not in self._labels:  # deleted meanwhile
            self.drop(key)
        return Offer(transport.kind, address, expires_at_s)

    async def take(
        self,
        handle: EmbeddingHandle | KvHandle,
        num_bytes: int,
        check: Callable[[Buffer], T],
        *,
        is_only_reader: bool = False,
    ) -> T:
        """Take a tensor of an expected size and look at it before it gets anywhere, all on another thread.

        Args:
            handle: Names the tensor.
            num_bytes: What the taker's own plan says.
            check: Looks at the bytes.
            is_only_reader: When the tensor is good, its producer is told that nobody takes it any more.

        Raises:
            TransferError: It did not arrive, or not as expected; also whatever `check` raises.
        """
        transport = self._required()
        if handle.connector != transport.kind:
            raise TransferError(
                f"The tensor is offered by {handle.connector!r}, this worker takes from {transport.kind!r}",
                hint="Give all workers the same transfer.connector.",
            )

        announced_bytes = prod(handle.metadata.shape) * ITEM_SIZE_BYTES[handle.metadata.dtype]
        if announced_bytes != num_bytes:
            raise LayoutMismatchError(f"The tensor offered has {announced_bytes} bytes, {num_bytes} were expected")

        def get() -> T:
            tensor = check(transport.get(handle.address, num_bytes, timeout_s=self._settings.timeout_s))
            if is_only_reader:
                self._release(transport, handle.address)
            return tensor

        taken = await asyncio.get_running_loop().run_in_executor(self._threads, get)
        self.num_taken += 1
        self.taken_bytes += num_bytes
        return taken

    async def forget(self, deletion: Deletion) -> int:
        """Stop offering what a deletion covers; returns how many tensors nobody can take any more."""
        theirs = [
            key for key, (label, _) in self._labels.items() if key == deletion.offer or label.is_covered(deletion)
        ]
        for key in theirs:
            del self._labels[key]
        if not theirs:
            return 0
        transport, loop = self._required(), asyncio.get_running_loop()
        return sum(await loop.run_in_executor(self._threads, lambda: [transport.drop(key) for key in theirs]))

    def drop(self, key: str) -> None:
        """Stop offering a tensor, soon."""
        transport = self._required()
        with suppress(RuntimeError):  # closed meanwhile, and with it all that was offered
            self._threads.submit(transport.drop, key)

    def close(self) -> None:
        """Stop offering everything; what waits for a thread is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._transport is not None:
            self._transport.close()

    def _note(self, key: str, label: CacheLabel) -> None:
        now = time.monotonic()
        self._labels.pop(key, None)
        self._labels[key] = label, now + self._settings.ttl_s
        while (first := next(iter(self._labels))) != key and self._labels[first][1] <= now:
            del self._labels[first]

    def _release(self, transport: Transport, address: str) -> None:
        """Tell the producer, soon: the tensor is here, and its user need not wait. What is not heard, expires."""

        def tell() -> None:
            with suppress(TransferError):
                transport.release(address, timeout_s=self._settings.timeout_s)

        with suppress(RuntimeError):  # closed meanwhile
            self._threads.submit(tell)

    def _required(self) -> Transport:
        if self._transport is None:
            raise HandleExpiredError("The tensor is not stored here, and this worker takes none from others")
        return self._transport
