"""The pictures of one prompt: held as their embeddings come, and handed on in the prompt's order."""

import asyncio
from collections.abc import Sequence

from chiasm.observability.receipt import StageClock
from chiasm.protocol.generation import GenerateRequest
from chiasm.protocol.media import EmbeddingHandle, MediaItem
from chiasm.workers.embeddings import EmbeddingSource, HeldEmbeddings
from chiasm.workers.late import Expected, arrived


class PromptPictures:
    """Gets the embedding of every distinct picture, all at once. Belongs to one event loop; to be closed."""

    def __init__(
        self,
        source: EmbeddingSource,
        request: GenerateRequest,
        places: Sequence[tuple[str, int, MediaItem]],
        late: Expected,
        clock: StageClock,
    ) -> None:
        """Begin to get them.

        Args:
            source: Where embeddings come from.
            request: Whose pictures they are.
            places: For each picture of the prompt, in order: its embedding's key, its item's position and its item.
            late: By position, handles that are still to come.
            clock: Gets the spans.
        """
        self._source = source
        self._request = request
        self._keys = [key for key, _, _ in places]
        self._tasks: dict[str, asyncio.Task[HeldEmbeddings]] = {}
        for key, index, item in places:
            if key not in self._tasks:
                self._tasks[key] = asyncio.create_task(self._hold(index, item, late.get(index), clock))
        self.num_ready = 0
        """Pictures at the start of the prompt whose embeddings are held."""

    @property
    def is_complete(self) -> bool:
        """Whether all are."""
        return self.num_ready == len(self._keys)

    @property
    def num_cached(self) -> int:
        """Distinct pictures whose embeddings were there already, once none has failed."""
        return sum(task.result().num_cached for task in self._tasks.values() if task.done())

    async def more(self) -> list[EmbeddingHandle]:
        """Wait until more pictures at the start of the prompt are ready; one handle each of those, held until `close`.

        Raises what any of the pictures failed with, as soon as it has.
        """
        start = self.num_ready
        while True:
            for task in self._tasks.values():
                if task.done():
                    task.result()
            while not self.is_complete and self._tasks[self._keys[self.num_ready]].done():
                self.num_ready += 1
            if self.is_complete or self.num_ready > start:
                return [self._handle(key) for key in self._keys[start : self.num_ready]]
            waiting = [task for task in self._tasks.values() if not task.done()]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)

    def close(self) -> None:
        """Give up what is held now, and what is still on its way as soon as it can be."""
        for task in self._tasks.values():
            if task.done():
                self._give_up(task)
            else:
                task.cancel()
                task.add_done_callback(self._give_up)

    async def _hold(
        self, index: int, item: MediaItem, late: "asyncio.Future[EmbeddingHandle] | None", clock: StageClock
    ) -> HeldEmbeddings:
        items = [(index, await arrived(item, late))]
        return await self._source.hold_all(self._request.request_id, items, clock, self._request.cache_salt)

    def _handle(self, key: str) -> EmbeddingHandle:
        (handle,) = self._tasks[key].result().handles.values()
        return handle

    def _give_up(self, task: "asyncio.Task[HeldEmbeddings]") -> None:
        if not task.cancelled() and task.exception() is None:
            self._source.release(task.result().handles.values())
