"""Embeddings that follow their request: each arrives in a call of its own, which may be here before the request is."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from chiasm.errors import HandleExpiredError
from chiasm.protocol.generation import GenerateRequest
from chiasm.protocol.media import EmbeddingHandle, LateSource, MediaItem
from chiasm.protocol.worker import SupplyRequest

Expected = dict[int, "asyncio.Future[EmbeddingHandle]"]


class LateEmbeddings:
    """What requests under way wait for. Belongs to one event loop."""

    def __init__(self) -> None:
        self._expected: dict[str, Expected] = {}
        self._early: dict[str, set[asyncio.Future[None]]] = {}

    @contextmanager
    def expecting(self, request: GenerateRequest) -> Iterator[Expected]:
        """By position, what is to come for the request; nothing is taken for it after the block."""
        loop = asyncio.get_running_loop()
        positions = [place for place, item in enumerate(request.items) if isinstance(item.source, LateSource)]
        expected: Expected = {place: loop.create_future() for place in positions}
        if not expected:
            yield expected
            return
        self._expected[request.request_id] = expected
        for caller in self._early.get(request.request_id, ()):
            if not caller.done():
                caller.set_result(None)
        try:
            yield expected
        finally:
            del self._expected[request.request_id]

    async def supply(self, request: SupplyRequest) -> None:
        """See `LateWorker.supply`."""
        expected = self._expected.get(request.request_id) or await self._arrival(request)
        for place, handle in request.handles.items():
            future = expected.get(place)
            if future is not None and not future.done():
                future.set_result(handle)

    async def _arrival(self, request: SupplyRequest) -> Expected:
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        callers = self._early.setdefault(request.request_id, set())
        callers.add(arrived)
        try:
            async with asyncio.timeout(request.timeout_s):
                await arrived
            return self._expected[request.request_id]
        except (TimeoutError, KeyError) as error:
            raise HandleExpiredError("No request under way waits for these embeddings") from error
        finally:
            callers.discard(arrived)
            if not callers:
                self._early.pop(request.request_id, None)


async def arrived(item: MediaItem, future: "asyncio.Future[EmbeddingHandle] | None") -> MediaItem:
    """The item, once its handle has come when it is a late one."""
    if future is None:
        return item
    return msgspec.structs.replace(item, source=await future)
