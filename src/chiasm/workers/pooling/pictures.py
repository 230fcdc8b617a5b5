"""Pictures of pooling requests: decoded and prepared before they queue for the engine."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from chiasm.engines.pooling.dual import Picture
from chiasm.errors import EngineStartError
from chiasm.media.decoding import PictureDecoder
from chiasm.media.item_errors import naming_item
from chiasm.media.prepare.base import ImagePreparer
from chiasm.media.prepare.registry import preparer_for
from chiasm.observability.receipt import StageClock
from chiasm.protocol.media import MediaItem
from chiasm.protocol.pooling.work import ImageInput, PoolInput
from chiasm.settings import MediaSettings


class PictureReader:
    """Belongs to the worker's event loop; `close` when done."""

    def __init__(self, preparer: ImagePreparer, decoder: PictureDecoder) -> None:
        self._preparer = preparer
        self._decoder = decoder

    @classmethod
    def of(cls, directory: Path, media: MediaSettings) -> Self:
        """Read how the model's pictures are prepared. Raises `UnsupportedModelError` or `EngineStartError`."""
        preparer = preparer_for(directory)
        if preparer is None:
            raise EngineStartError(
                f"{directory.name} does not say how its pictures are prepared",
                hint="Save the model with its image processor: preprocessor_config.json is missing",
            )
        return cls(preparer, PictureDecoder(media))

    @property
    def revision(self) -> str:
        """See `ImagePreparer`."""
        return self._preparer.revision

    async def prepared(self, inputs: Sequence[PoolInput], clock: StageClock) -> dict[str, Picture]:
        """Prepare each distinct picture of a request, by identity. Cancelling drops what has not begun.

        Raises:
            MediaError: A picture is broken or beyond a limit; `item` is its place in the request.
        """
        first: dict[str, tuple[int, MediaItem]] = {}
        for index, one in enumerate(inputs):
            if isinstance(one, ImageInput):
                first.setdefault(one.item.identity, (index, one.item))
        if not first:
            return {}
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {
                    identity: group.create_task(self._one(index, item, clock))
                    for identity, (index, item) in first.items()
                }
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return {identity: task.result() for identity, task in tasks.items()}

    def close(self) -> None:
        """End the decoder's threads after what they are at."""
        self._decoder.close()

    async def _one(self, index: int, item: MediaItem, clock: StageClock) -> Picture:
        with naming_item(index):
            prepared = await self._decoder.prepare(item, self._preparer, clock, index)
        return Picture(item.identity, prepared.plan.num_embeddings, prepared)
