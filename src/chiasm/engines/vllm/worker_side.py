"""The connector in vLLM's workers: publishes what was encoded, loads what the scheduler has checked. Never raises."""

from collections.abc import Mapping
from typing import Literal, cast

import torch
from vllm.logger import init_logger
from vllm.utils.gpu_sync_debug import gpu_sync_allowed

from chiasm.connectors.base import Transport
from chiasm.connectors.shm.reader import Reader
from chiasm.engines.vllm.ec.announcement import Layout
from chiasm.engines.vllm.ec.engine_folder import engine_folder
from chiasm.engines.vllm.ec.forget_mark import ForgetMark
from chiasm.engines.vllm.ec.options import EcOptions
from chiasm.engines.vllm.ec.published_store import PublishedStore
from chiasm.engines.vllm.ec.receipts import ReceiptWriter
from chiasm.engines.vllm.ec.verified_store import StoredEmbedding
from chiasm.engines.vllm.metadata import StepOrders, StepReport

logger = init_logger("vllm.chiasm.ec")


class PublishingWorker:
    """The one worker that offers a producer's embeddings."""

    def __init__(self, options: EcOptions, engine: str, revision: str) -> None:
        """Start the transport. Raises `InvalidSettingError` when it cannot be used here."""
        self._revision = revision
        self._store = PublishedStore(
            _transport(options),
            ReceiptWriter(engine_folder(options.directory, engine)),
            ttl_s=options.ttl_s,
            hold_s=options.hold_s,
            max_bytes=options.max_bytes,
        )

    def publish(self, identity: str, embedding: torch.Tensor) -> None:
        """Offer an embedding as encoded: [rows, width]."""
        try:
            with gpu_sync_allowed():
                host = embedding.detach().to("cpu").contiguous()
            data = host.view(torch.uint8).numpy().reshape(-1).data
            self._store.publish(identity, _layout(host, self._revision), data)
        except Exception:
            logger.exception("An embedding could not be published")

    def renew(self, wanted: set[str], encoder_cache: Mapping[str, torch.Tensor]) -> None:
        """Offer again what vLLM will not encode again. Who asks may have found what was on offer lost or damaged."""
        for identity in wanted:
            if identity in encoder_cache:
                self.publish(identity, encoder_cache[identity])

    def forget(self) -> int:
        """Take back all that is on offer; returns how much it was."""
        return self._store.forget()

    def close(self) -> None:
        """Offer nothing more."""
        self._store.close()


class LoadingWorker:
    """Every worker of a consumer: copies from the scheduler's verified store into vLLM's encoder cache."""

    def __init__(self, device: torch.device, mark: ForgetMark) -> None:
        self._device = device
        self._mark = mark
        self._reader = Reader()
        self._report = StepReport()

    def load(self, orders: StepOrders, encoder_cache: dict[str, torch.Tensor]) -> None:
        """Fill the encoder cache; what cannot be loaded is reported and never used as if it had been."""
        for identity, stored in orders.loads.items():
            if identity not in encoder_cache:
                encoder_cache[identity] = self._load(identity, stored)
            else:
                self._report.loaded.add(identity)
        for identity, stored in orders.reloads.items():
            if identity in encoder_cache:
                encoder_cache[identity] = self._load(identity, stored)
            else:
                self._report.loaded.add(identity)  # nothing there to replace

    def take_report(self) -> StepReport | None:
        """What happened in this step."""
        report, self._report = self._report, StepReport()
        return report if report.loaded or report.failed else None

    def forget(self) -> None:
        """Have the scheduler forget everything."""
        self._mark.set()

    def is_forgetting(self) -> bool:
        """Whether it has not done so yet."""
        return self._mark.is_set()

    def close(self) -> None:
        """Forget the shared memory."""
        self._reader.close()

    def _load(self, identity: str, stored: StoredEmbedding) -> torch.Tensor:
        dtype = getattr(torch, stored.layout.dtype)
        try:
            view = self._reader.get(stored.address, stored.layout.num_bytes)
            loaded = torch.frombuffer(bytearray(view), dtype=dtype).view(stored.layout.shape)
            with gpu_sync_allowed():
                on_device = loaded.to(self._device)
        except Exception:
            logger.exception("A checked embedding could not be loaded; its requests fail")
            self._report.failed.add(identity)  # by which `CheckedScheduler` ends what is computed of these zeros
            return torch.zeros(stored.layout.shape, dtype=dtype, device=self._device)
        self._report.loaded.add(identity)
        return on_device


def _transport(options: EcOptions) -> Transport:
    if options.transport == "shm":
        from chiasm.connectors.shm.transport import ShmTransport  # noqa: PLC0415 - only what is asked for

        return ShmTransport(max_bytes=options.max_bytes)
    from chiasm.connectors.tcp.transport import TcpTransport  # noqa: PLC0415 - only what is asked for

    return TcpTransport(host=options.host, max_bytes=options.max_bytes, timeout_s=options.wait_s)


def _layout(host: torch.Tensor, revision: str) -> Layout:
    rows, width = host.shape
    dtype = str(host.dtype).removeprefix("torch.")
    return Layout(
        shape=(rows, width), dtype=cast("Literal['float32', 'bfloat16', 'float16']", dtype), revision=revision
    )
