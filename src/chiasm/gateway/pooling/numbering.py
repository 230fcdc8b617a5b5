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
        number = None if error.item is None else self._number(error.item, inputs)
        return error if number is None else renumbered(error, number, self._params[number])

    def spans(self, spans: Iterable[Span], inputs: Sequence[PoolInput]) -> list[Span]:
        """The spans of such a worker."""
        return [
            one if one.item is None else msgspec.structs.replace(one, item=self._number(one.item, inputs))
            for one in spans
        ]

    def _number(self, number: int, inputs: Sequence[PoolInput]) -> int | None:
        """None of a picture that no reference stands for: a processor made it."""
        identities = [item.identity for one in inputs for item in media_of(one)]
        return self._numbers.get(identities[number])
