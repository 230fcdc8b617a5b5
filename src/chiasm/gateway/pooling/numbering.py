"""Pictures by the numbers that their references have in the body, also where the worker counts otherwise."""

from collections.abc import Iterable, Sequence

import msgspec

from chiasm.errors import MediaError
from chiasm.media.item_errors import renumbered
from chiasm.media.reference import MediaReference
from chiasm.observability.receipt import Span
from chiasm.protocol.media import MediaItem
from chiasm.protocol.pooling.work import PoolInput, media_of


class PictureNumbers:
    """Of one request. Of pictures with the same content the first counts, as it does for the worker."""

    def __init__(self) -> None:
        self._params: list[str] = []
        self._numbers: dict[str, int] = {}

    def note(self, references: Sequence[MediaReference], items: Sequence[MediaItem | MediaError]) -> None:
        """Take what the references of the request came to."""
        self._params = [reference.param for reference in references]
        for number, item in enumerate(items):
            if isinstance(item, MediaItem):
                self._numbers.setdefault(item.identity, number)

    def about(self, error: MediaError, inputs: Sequence[PoolInput]) -> MediaError:
        """The error of a worker that was given these inputs, as the caller of the API should read it."""
        number = None if error.item is None else self._of(inputs)[error.item]
        return error if number is None else renumbered(error, number, self._params[number])

    def spans(self, spans: Iterable[Span], inputs: Sequence[PoolInput]) -> list[Span]:
        """The spans of such a worker."""
        numbers = self._of(inputs)
        return [one if one.item is None else msgspec.structs.replace(one, item=numbers[one.item]) for one in spans]

    def _of(self, inputs: Sequence[PoolInput]) -> list[int | None]:
        """Of the inputs' pictures, in order; None of one that no reference stands for: a processor made it."""
        return [self._numbers.get(item.identity) for one in inputs for item in media_of(one)]
