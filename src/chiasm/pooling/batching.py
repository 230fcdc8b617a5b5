"""Which inputs are computed together next. Pure: no clock, no tensors.

Nothing is padded, so a batch is filled by tokens. Among requests that have waited less than the delay allowed, the one
with the fewest tokens left goes first, which lets a query's embedding pass a bulk job; after that, who came first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

Request = TypeVar("Request", bound="WaitingRequest")


@dataclass(eq=False)
class WaitingRequest:
    """Inputs of one request that are not computed yet.

    Attributes:
        arrived_s: On the clock that `choose` is called with.
        lengths: Tokens of every input of the request, by its number.
        left: Numbers of inputs still to be taken, longest first: they are taken from the end.
        num_tokens_left: Of those.
    """

    arrived_s: float
    lengths: Sequence[int]
    left: list[int] = field(init=False)
    num_tokens_left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = sorted(range(len(self.lengths)), key=lambda number: -self.lengths[number])
        self.num_tokens_left = sum(self.lengths)

    def take_next(self, room_tokens: int) -> int | None:
        """Take the shortest input, if it fits."""
        if not self.left or self.lengths[self.left[-1]] > room_tokens:
            return None
        number = self.left.pop()
        self.num_tokens_left -= self.lengths[number]
        return number


def choose(waiting: Sequence[Request], max_tokens: int, now_s: float, max_delay_s: float) -> list[tuple[Request, int]]:
    """Take inputs for one batch out of `waiting`: (request, number of the input).

    The first input is taken whatever its length, so that every call makes progress.
    """

    def urgency(request: Request) -> tuple[int, float]:
        is_overdue = now_s - request.arrived_s >= max_delay_s
        return (0, request.arrived_s) if is_overdue else (1, request.num_tokens_left)

    chosen: list[tuple[Request, int]] = []
    room_tokens = max_tokens
    for request in sorted(waiting, key=urgency):
        while True:
            number = request.take_next(room_tokens if chosen else max(request.lengths, default=0))
            if number is None:
                break
            chosen.append((request, number))
            room_tokens -= request.lengths[number]
        if room_tokens <= 0:
            break
    return chosen
