"""The worker contract: all that the gateway may ask of an engine, wherever it runs."""

from collections.abc import AsyncGenerator
from typing import Literal, Protocol

import msgspec

from chiasm.observability.receipt import Span
from chiasm.protocol.contract import CONTRACT_VERSION
from chiasm.protocol.generation import GenerateEvent, GenerateRequest
from chiasm.protocol.media import CacheSalt, EmbeddingHandle, MediaItem

Role = Literal["encode", "prefill", "decode"]


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Who a worker is; fixed while it lives.

    Attributes:
        takes_late_embeddings: It is a `LateWorker`.
        encodes_for_others: Whether `encode` may be asked of it; a worker with the role that says no encodes only on its
            own way to a prompt's first token.
        takes_adapters: It is `chiasm.protocol.adapters.Adaptable`; others do not know a request's adapter.
        server: What it shares with other workers, who die with it; empty: nothing.
        hands_kv_to_one: Whether keys and values that it keeps of a prompt can be taken for one choice only, so that it
            decodes prompts with several choices itself.
        mixes_sources: Whether a prompt may have pictures as embeddings beside pictures as they are.
    """

    version: int = CONTRACT_VERSION
    name: str = "local"
    model: str
    family: str
    roles: tuple[Role, ...]
    dtype: str
    device: str
    max_model_tokens: int
    takes_images: bool
    takes_late_embeddings: bool = False
    encodes_for_others: bool = True
    mixes_sources: bool = True
    hands_kv_to_one: bool = False
    takes_adapters: bool = False
    model_revision: str
    processor_revision: str
    started_at_unix_s: float
    server: str = ""


class WorkerStats(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's load and its counters. Counts of things held must return to their idle values when it is idle."""

    is_healthy: bool
    num_running: int
    num_waiting: int
    num_free_slots: int
    num_cached_blocks: int
    num_cached_embeddings: int
    num_held_embeddings: int
    num_open_requests: int
    num_pinned_blocks: int = 0
    num_offered_tensors: int = 0
    num_decoding_pictures: int = 0
    num_decoding_pixels: int = 0
    num_adapters: int = 0
    totals: dict[str, float]


class EncodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Encode items ahead of a generation that will name them by handle."""

    version: int = CONTRACT_VERSION
    request_id: str
    items: tuple[MediaItem, ...]
    cache_salt: CacheSalt = ""
    timeout_s: float = 120.0


class EncodeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """One handle per item, in order; the same identity twice gives the same handle twice.

    `spans` count from the moment the worker received the request.
    """

    handles: tuple[EmbeddingHandle, ...]
    spans: tuple[Span, ...] = ()


class SupplyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Embeddings that a generation under way waits for, by the positions of its items. May come before it does."""

    version: int = CONTRACT_VERSION
    request_id: str
    handles: dict[int, EmbeddingHandle]
    timeout_s: float = 10.0


class Worker(Protocol):
    """Implemented by the embedded engine's worker and by adapters for other engines."""

    @property
    def info(self) -> WorkerInfo:
        """Fixed facts about the worker."""
        ...

    def stats(self) -> WorkerStats:
        """A snapshot; cheap, never blocks."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent, None]:
        """Run one request. Ends with `RequestFinished` or raises one `ChiasmError`.

        Closing the iterator, or cancelling the task that reads it, cancels the request and frees all it holds.
        """
        ...

    async def encode(self, request: EncodeRequest) -> EncodeResponse:
        """Encode items and keep the embeddings for later generations. Raises `ChiasmError`."""
        ...

    async def aclose(self) -> None:
        """Stop; requests still open end with `EngineDeadError`."""
        ...


class LateWorker(Worker, Protocol):
    """A worker that computes a prompt's start while embeddings are on their way; not every engine can."""

    async def supply(self, request: SupplyRequest) -> None:
        """Hand over embeddings for items of a generation whose source is `LateSource`.

        Raises:
            HandleExpiredError: No such generation came within `timeout_s`, or it has ended.
            DeadlineExceededError: The same, noticed by the caller first.
        """
        ...
