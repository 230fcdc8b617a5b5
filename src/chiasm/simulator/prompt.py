"""What routing is told of a simulated request: its pictures, its starts, and what it has met so far."""

from collections.abc import Collection

from chiasm.protocol.media import EmbeddingHandle, EmbeddingMetadata
from chiasm.routing.coverage.prefixes import Prefix
from chiasm.routing.fleet import Fleet
from chiasm.routing.recovery import Ladder
from chiasm.routing.view import ItemView, Job
from chiasm.simulator.known import CHARS_PER_TOKEN
from chiasm.simulator.traffic import Request

ON_OFFER = EmbeddingHandle(
    connector="simulated",
    key="",
    metadata=EmbeddingMetadata(
        identity="0" * 64,
        num_embeddings=1,
        shape=(1, 1),
        dtype="float32",
        model_revision="simulated",
        processor_revision="simulated",
        checksum="",
    ),
)
"""Stands for any embedding that is on offer: nobody in a simulation takes one over."""


class Prompt:
    """A request's prompt: its pictures, then its text.

    Attributes:
        pictures: By identity.
        places: Of each, the first.
        prefixes: Starts that others may have in common with it, the shortest first.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self.pictures = {one.identity: one for one in request.pictures}
        self.places: dict[str, int] = {}
        self._positions: dict[str, tuple[int, ...]] = {}
        for position, picture in enumerate(request.pictures):
            self.places.setdefault(picture.identity, position)
            self._positions[picture.identity] = (*self._positions.get(picture.identity, ()), position)
        self.prefixes = _prefixes(request)

    def job(self, fleet: Fleet, ladder: Ladder, may_overlap: frozenset[str]) -> Job:
        """The request as policies see it now."""
        index = fleet.embeddings
        items = [
            ItemView(
                identity=identity,
                positions=positions,
                num_pixels=self.pictures[identity].num_pixels,
                has_handle=index.handle(identity) is not None,
                holders=index.holders(identity),
            )
            for identity, positions in self._positions.items()
        ]
        has_late = may_overlap and self.pictures
        return Job(
            items=tuple(items),
            num_chars=CHARS_PER_TOKEN * self._request.text_tokens,
            max_output_tokens=self._request.output_tokens,
            known=fleet.prefixes.longest(self.prefixes),
            starts=self._starts() if has_late else {},
            may_overlap=may_overlap if has_late else frozenset(),
            failed=frozenset(ladder.failed),
            failed_encoders=frozenset(ladder.failed_encoders),
            local_only=frozenset(ladder.local_only),
        )

    def num_missing_tokens(self, missing: Collection[str]) -> int:
        """At the prompt's end, those that cannot be computed before these pictures are there."""
        num_left = self._request.prompt_tokens
        for picture in self._request.pictures:
            if picture.identity in missing:
                return num_left
            num_left -= picture.num_tokens
        return 0

    def num_tokens(self, prefix: Prefix) -> int:
        """Tokens of a start."""
        of_pictures = sum(one.num_tokens for one in self._request.pictures) if prefix.items else 0
        return of_pictures + prefix.num_chars // CHARS_PER_TOKEN

    def _starts(self) -> dict[str, Prefix]:
        names = tuple(one.identity for one in self._request.pictures)
        return {identity: Prefix("", 0, names[: place + 1]) for identity, place in self.places.items()}


def _prefixes(request: Request) -> list[Prefix]:
    if request.prefix:
        return [Prefix(request.prefix, 0, tuple(one.identity for one in request.pictures))]
    if request.pictures:
        return []
    num_chars = CHARS_PER_TOKEN * request.block_tokens
    return [Prefix(name, (place + 1) * num_chars, ()) for place, name in enumerate(request.blocks)]
