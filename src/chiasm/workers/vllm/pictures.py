"""Pictures of requests to a processor inside vLLM: fetched, checked, decoded and prepared before vLLM hears of them."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from chiasm.engines.pooling.dual import Feature
from chiasm.errors import MediaError
from chiasm.media.decoding import PictureDecoder
from chiasm.media.ingest import MediaIngest
from chiasm.media.item_errors import naming_item
from chiasm.media.prepare.base import ImagePreparer, PreparedImage
from chiasm.media.reference import MediaReference
from chiasm.protocol.media import MediaItem
from chiasm.settings import MediaSettings


@dataclass(frozen=True)
class PreparedPictures:
    """A request's distinct pictures by identity, and what is wrong with those that cannot be used."""

    prepared: Mapping[str, PreparedImage] = field(default_factory=dict)
    failures: Mapping[str, MediaError] = field(default_factory=dict)

    def features(self) -> dict[str, Feature]:
        """What stands for them while texts are read; vLLM has the rows."""
        nothing = np.empty((0, 0), np.float32)
        return {
            identity: Feature(identity, one.plan.num_embeddings, nothing) for identity, one in self.prepared.items()
        }


NO_PICTURES = PreparedPictures()


class PictureRoom:
    """Chiasm's media room beside a vLLM server. Belongs to one event loop; every wait is bounded by its caller's."""

    def __init__(self, settings: MediaSettings) -> None:
        self._ingest = MediaIngest(settings, None)
        self._decoder = PictureDecoder(settings)

    async def collect(self, references: Sequence[MediaReference], deadline_s: float) -> list[MediaItem | MediaError]:
        """Fetch and check; see `MediaIngest.collect_each`."""
        return await self._ingest.collect_each(references, deadline_s)

    async def prepare(
        self, items: Sequence[MediaItem], preparer: ImagePreparer, *, is_tolerant: bool
    ) -> PreparedPictures:
        """Decode and prepare distinct pictures side by side.

        Raises:
            MediaError: One is broken or beyond a limit, and that is not tolerated; `item` is its first place.
        """
        prepared: dict[str, PreparedImage] = {}
        failures: dict[str, MediaError] = {}
        first: dict[str, int] = {}
        for place, item in enumerate(items):
            first.setdefault(item.identity, place)

        async def one(identity: str, place: int) -> None:
            try:
                with naming_item(place):
                    prepared[identity] = await self._decoder.prepare(items[place], preparer)
            except MediaError as error:
                if not is_tolerant:
                    raise
                failures[identity] = error

        try:
            async with asyncio.TaskGroup() as group:
                for identity, place in first.items():
                    group.create_task(one(identity, place))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return PreparedPictures(prepared, failures)

    async def aclose(self) -> None:
        """End connections and threads."""
        await self._ingest.aclose()
        self._decoder.close()
