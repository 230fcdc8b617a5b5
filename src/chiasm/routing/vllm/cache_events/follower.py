"""Follows one engine's events: in order, with gaps filled or admitted."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Protocol

from chiasm.errors import ChiasmError, EngineError
from chiasm.protocol.generation import GenerateRequest, Usage
from chiasm.routing.coverage.losses import Lost
from chiasm.routing.vllm.cache_events.blocks import HeldBlocks
from chiasm.routing.vllm.cache_events.messages import AllBlocksCleared, Batch, BlockRemoved, BlockStored, batch_of
from chiasm.routing.vllm.cache_events.starts import served_by

logger = logging.getLogger(__name__)
_RETRY_PAUSE_S = 1.0
_WARNING_INTERVAL_S = 60.0
_MEDIA = (None, "GPU")  # what is evicted to a slower memory and comes back counts as evicted
_MAX_NAME_CHARS = 256
_COUNTED = (
    "kv_event_batches",
    "kv_event_batches_replayed",
    "kv_event_batches_missed",
    "kv_starts_forgotten",
    "kv_caches_forgotten",
)


class Source(Protocol):
    """Where events come from."""

    async def received(self) -> tuple[int, bytes]:
        """The next batch and its number. Raises `EngineError`."""
        ...

    def replayed(self, first: int, until: int) -> AsyncGenerator[tuple[int, bytes], None]:
        """Batches from a number on and before another, in order, up to the first that the server has not.

        Raises `EngineError`.
        """
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


class Follower:
    """Knows which starts of prompts an engine still holds. Lives on one event loop."""

    def __init__(self, blocks: HeldBlocks | None = None) -> None:
        self._source: Source | None = None
        self._blocks = blocks or HeldBlocks()
        self._lost: Lost = lambda _: None
        self._next: int | None = None
        self._last_ts = 0.0
        self._quiet_until_s = 0.0
        self._counts: Counter[str] = Counter(dict.fromkeys(_COUNTED, 0))
        self._task: asyncio.Task[None] | None = None

    @property
    def totals(self) -> Mapping[str, int]:
        """What has come, was missed, and was forgotten, since the start."""
        return self._counts

    def start(self, source: Source, lost: Lost) -> None:
        """Begin to follow, once; `lost` is told what routing is to forget. `aclose` closes the source."""
        assert self._task is None, "a worker joins one fleet"
        self._source, self._lost = source, lost
        self._task = asyncio.create_task(self._follow(source))

    def served(self, request: GenerateRequest, usage: Usage) -> None:
        """A call has ended well."""
        self._blocks.served(request.request_id, served_by(request, usage))

    async def aclose(self) -> None:
        """Stop."""
        try:
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait([self._task])
        finally:
            if self._source is not None:
                self._source.close()

    async def _take(self, source: Source, number: int, payload: bytes) -> None:
        """One batch, as it came."""
        try:
            batch = batch_of(payload)
        except EngineError as error:
            self._miss(1, error.message)
            self._next = number + 1
            return
        if self._next is not None and number < self._next:
            if batch.ts <= self._last_ts:
                return  # it was replayed before it came
            self._forget_all()  # another engine counts from the beginning, with an empty cache
        elif self._next is not None and number > self._next:
            await self._catch_up(source, self._next, number)
        self._apply(number, batch)

    async def _follow(self, source: Source) -> None:
        while True:
            try:
                await self._take(source, *await source.received())
                await asyncio.sleep(0)  # what waits already is received without a turn for others
            except EngineError as error:
                self._warn("Cache events cannot be received: %s", error.message)
                await asyncio.sleep(_RETRY_PAUSE_S)
            except Exception:
                logger.exception("Cache events cannot be followed")
                self._miss(1, "a fault of our own")
                await asyncio.sleep(_RETRY_PAUSE_S)

    async def _catch_up(self, source: Source, first: int, until: int) -> None:
        """Take what was missed from the server's memory, in order. What that does not have any more stays a gap."""
        num_missing, why = until - first, "batches were lost on their way"
        try:
            async with aclosing(source.replayed(first, until)) as batches:
                async for number, payload in batches:
                    self._apply(number, batch_of(payload))
                    self._counts["kv_event_batches_replayed"] += 1
                    num_missing -= 1
                    await asyncio.sleep(0)
        except ChiasmError as error:
            why = error.message
        if num_missing:
            self._miss(num_missing, why)

    def _miss(self, num_batches: int, why: str) -> None:
        """What is known may be wrong now: it is left to book-keeping, until blocks are seen anew."""
        self._warn("Cache events are missing, routing goes by book-keeping for what is known: %s", why)
        self._counts["kv_event_batches_missed"] += num_batches
        self._blocks.clear()

    def _warn(self, message: str, why: str) -> None:
        """Log a warning, but not for each of many: the counters say how many."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + _WARNING_INTERVAL_S
            logger.warning(message, why)

    def _apply(self, number: int, batch: Batch) -> None:
        self._next, self._last_ts = number + 1, batch.ts
        self._counts["kv_event_batches"] += 1
        clears = [place for place, event in enumerate(batch.events) if isinstance(event, AllBlocksCleared)]
        if clears:  # what came before the last one is gone, too
            self._forget_all()
        for event in batch.events[clears[-1] + 1 if clears else 0 :]:
            assert not isinstance(event, AllBlocksCleared), "these come after the last one"
            if event.group_idx in (None, 0) and event.medium in _MEDIA:
                self._note(event)

    def _note(self, event: BlockStored | BlockRemoved) -> None:
        if isinstance(event, BlockStored):
            call = event.session_id if len(event.session_id or "") <= _MAX_NAME_CHARS else None  # of no call of ours
            self._blocks.stored(call, event.block_hashes, event.parent_block_hash, event.block_size)
        elif gone := self._blocks.removed(event.block_hashes):
            self._counts["kv_starts_forgotten"] += len(gone)
            self._lost(gone)

    def _forget_all(self) -> None:
        self._counts["kv_caches_forgotten"] += 1
        self._blocks.clear()
        self._lost(None)
