"""The pictures of one request on their way to encoders: shared out, joined with calls under way, accounted for."""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from chiasm.errors import ChiasmError, DeadlineExceededError, EngineDeadError, MediaError
from chiasm.observability.receipt import Span
from chiasm.routing.parts import RouterParts
from chiasm.routing.pictures import Pictures
from chiasm.routing.plan import EncodeGroup
from chiasm.routing.recovery import Ladder, StageError
from chiasm.routing.stages.flights import Delivered, Flight

if TYPE_CHECKING:
    import asyncio

_GRACE_S = 0.5
"""A call ends by its own limit; only one that does not even do that is left behind."""


class Landed(Protocol):
    """Told that a call about some of the pictures has ended, and whether well."""

    async def __call__(self, pictures: Mapping[str, int], *, is_good: bool) -> None:
        """Take note; nothing of this request's is looked at meanwhile."""
        ...


@dataclass(frozen=True)
class _Wait:
    flight: Flight
    pictures: Mapping[str, int]
    is_own: bool


class FanOut:
    """Gets embeddings for one request. `run` may be called again for what is still missing.

    Attributes:
        made: Identities that encoders made for this request.
        joined: Identities that somebody else's call brought.
        spans: What the waits came to, on the router's clock.
    """

    def __init__(self, parts: RouterParts, request_id: str, pictures: Pictures, ladder: Ladder) -> None:
        self._parts = parts
        self._request_id = request_id
        self._pictures = pictures
        self._ladder = ladder
        self._alone: set[str] = set()
        self._num_calls = 0
        self.made: set[str] = set()
        self.joined: set[str] = set()
        self.spans: list[Span] = []

    async def run(self, groups: Sequence[EncodeGroup], landed: Landed | None = None) -> bool:
        """Encode; returns whether all came. What did not is on the ladder, whose errors are raised here.

        `landed` is told of each call that has ended, before the next is looked at.
        """
        start_s, flights = self._parts.clock.now_s(), self._parts.encode.flights
        limit_s = self._limit_s([identity for group in groups for identity in group.identities])
        waits = {wait.flight: wait for wait in self._board(groups, limit_s)}
        failures: list[tuple[StageError, bool]] = []
        async with aclosing(flights.landing(waits, limit_s + _GRACE_S)) as landing:
            async for flight in landing:
                failed = self._land(waits[flight], start_s)
                failures += [failed] if failed is not None else []
                if landed is not None:
                    await landed(waits[flight].pictures, is_good=failed is None)
        for failure, is_own in failures:
            if is_own:
                self._parts.fleet.blame(failure.worker, failure.error)
                self._ladder.encode_failed(failure)
            else:
                self._ladder.noted(failure)
                self._alone.update(failure.pictures)
        return not failures

    def _board(self, groups: Sequence[EncodeGroup], limit_s: float) -> list[_Wait]:
        """Start calls and join those under way; nothing is awaited between here and the wait for them."""
        places, flights = self._pictures.first_positions, self._parts.encode.flights
        own: list[tuple[str, dict[str, int]]] = []
        joined: dict[Flight, dict[str, int]] = {}
        for group in groups:
            mine: dict[str, int] = {}
            for identity in group.identities:
                flight = None if identity in self._alone else flights.get(identity, self._pictures.cache_salt)
                if flight is None:
                    mine[identity] = places[identity]
                else:
                    joined.setdefault(flight, {})[identity] = places[identity]
            own += [(group.worker, mine)] if mine else []
        waits = [_Wait(flight, pictures, is_own=False) for flight, pictures in joined.items()]
        for worker, pictures in own:
            waits.append(_Wait(self._start(worker, pictures, limit_s), pictures, is_own=True))
        return waits

    def _start(self, worker: str, pictures: Mapping[str, int], limit_s: float) -> Flight:
        self._num_calls += 1
        items = {identity: self._pictures.item(identity) for identity in pictures}
        call_id = f"{self._request_id}.e{self._num_calls}"
        return self._parts.encode.start(worker, items, call_id, limit_s, self._pictures.cache_salt)

    def _limit_s(self, identities: list[str]) -> float:
        encoders = [
            one for one in self._parts.fleet.with_role("encode") if one.name not in self._ladder.failed_encoders
        ]
        return self._ladder.share_s(self._ladder.others_for_encode(identities, len(encoders)))

    def _land(self, wait: _Wait, start_s: float) -> tuple[StageError, bool] | None:
        try:
            delivered = _outcome(wait.flight.task)
        except ChiasmError as error:
            for position in wait.pictures.values():
                self.spans.append(Span("encode_queue", start_s, self._parts.clock.now_s(), position))
            return self._failure(wait, error), wait.is_own
        self._pictures.deliver({identity: delivered.handles[identity] for identity in wait.pictures})
        places = list(wait.pictures.values())
        if wait.is_own:
            self.made.update(wait.pictures)
            self._ladder.passed("encode", wait.flight.worker, places)
            self.spans += [_placed(span, places) for span in delivered.spans]
        else:
            self.joined.update(wait.pictures)
            end_s = self._parts.clock.now_s()
            self.spans += [Span("encode_queue", start_s, end_s, position) for position in places]
        return None

    def _failure(self, wait: _Wait, error: ChiasmError) -> StageError:
        if wait.is_own and isinstance(error, MediaError) and error.item is not None:
            error = renumbered(error, list(wait.pictures.values()))
        return StageError("encode", wait.flight.worker, error, wait.pictures)


def _outcome(task: "asyncio.Task[Delivered]") -> Delivered:
    if not task.done():
        raise DeadlineExceededError("An encode call did not end in time")
    if task.cancelled():
        raise EngineDeadError("An encode call was ended from outside")
    return task.result()


def _placed(span: Span, places: Sequence[int]) -> Span:
    if span.item is None or span.item >= len(places):
        return span
    return msgspec.structs.replace(span, item=places[span.item])


def renumbered(error: MediaError, places: Sequence[int]) -> MediaError:
    """The error with the item's position in the request, where the worker gave that in its call."""
    assert error.item is not None
    if error.item >= len(places):
        return error
    message = error.message.removeprefix(f"Media item {error.item}: ")
    item = places[error.item]
    return type(error)(f"Media item {item}: {message}", hint=error.hint, param=error.param, item=item)
