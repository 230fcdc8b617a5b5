"""Pictures that wait for the tower. The request that has least left goes first, but none is passed over for ever.

So a request with one picture does not wait for all of another's eight, and of two alike the first is complete first.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from chiasm.scheduling.precedence import Precedence, Rank


class Encodable(Protocol):
    """A picture to encode. Hashed by identity.

    Attributes:
        owner: The request that it belongs to.
        num_embeddings: What it takes.
    """

    @property
    def owner(self) -> str:
        """See the class."""
        ...

    @property
    def num_embeddings(self) -> int:
        """See the class."""
        ...


E = TypeVar("E", bound=Encodable)


@dataclass(slots=True, eq=False)
class _Place(Generic[E]):
    picture: E
    rank: Rank = ()


class EncodeLine(Generic[E]):
    """Not thread-safe."""

    def __init__(self) -> None:
        self._places: dict[E, _Place[E]] = {}
        self._precedence = Precedence()

    def __len__(self) -> int:
        return len(self._places)

    def add(self, picture: E) -> None:
        """Let one wait."""
        self._places[picture] = _Place(picture)

    def remove(self, picture: E) -> None:
        """Let one go; harmless when it does not wait."""
        self._places.pop(picture, None)

    def take(self, room: int) -> list[E]:
        """The next batch: one picture of any size, and more as far as `room` embeddings go. Empty when nobody waits."""
        waiting = list(self._places.values())
        left: Counter[str] = Counter()
        for place in waiting:
            left[place.picture.owner] += place.picture.num_embeddings
        for place in waiting:
            place.rank = (left[place.picture.owner],)
        taken: list[_Place[E]] = []
        for place in self._precedence.in_order(waiting):
            if taken and place.picture.num_embeddings > room:
                break
            taken.append(place)
            room -= place.picture.num_embeddings
        self._precedence.served(waiting, taken)
        for place in taken:
            del self._places[place.picture]
        return [place.picture for place in taken]
