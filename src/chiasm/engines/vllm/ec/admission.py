"""Which requests may enter the model's next step: those whose embeddings lie checked in this host's memory."""

import time
from collections.abc import Callable, Sequence

import msgspec

from chiasm.engines.vllm.ec.announcement import (
    Expected,
    Wanted,
    check_expected,
    check_wanted,
    read_announcement,
)
from chiasm.engines.vllm.ec.counters import Counters
from chiasm.engines.vllm.ec.pulls import Pull, Pulls
from chiasm.engines.vllm.ec.verified_store import StoredEmbedding, VerifiedStore
from chiasm.errors import ChiasmError, DeadlineExceededError, OverloadedError


class _Request(msgspec.Struct):
    deadline: float
    started_at: float
    held: dict[str, StoredEmbedding]
    local: set[str]
    is_waiting: bool = True


class Admission:
    """For one thread: the scheduler's."""

    def __init__(
        self,
        store: VerifiedStore,
        pulls: Pulls,
        counters: Counters,
        expected: Expected,
        *,
        wait_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._pulls = pulls
        self._counters = counters
        self._expected = expected
        self._wait_s = wait_s
        self._clock = clock
        self._requests: dict[str, _Request] = {}

    @property
    def num_requests(self) -> int:
        """Requests that wait or hold embeddings."""
        return len(self._requests)

    def is_ready(self, request_id: str, items: Sequence[Wanted], params: object) -> bool:
        """Hold what the items need; False while something is still on its way. A request that is ready may ask again.

        Raises:
            ChiasmError: An item cannot be had, or not in time, and this consumer cannot encode it either.
        """
        now = self._clock()
        request = self._requests.setdefault(request_id, _Request(now + self._wait_s, now, {}, set()))
        if not request.is_waiting and any(self._is_open(request, item) for item in items):
            request.started_at, request.deadline, request.is_waiting = now, now + self._wait_s, True  # was preempted
        are_there = [self._is_there(request, item, params) for item in items]  # all of them, so that all pulls start
        is_ready = all(are_there)
        if is_ready and request.is_waiting:
            request.is_waiting = False
            self._counters.add("wait_seconds", self._clock() - request.started_at)
        return is_ready

    def held(self, request_id: str, identity: str) -> StoredEmbedding | None:
        """What a ready request holds for an item; None for what it encodes itself."""
        request = self._requests.get(request_id)
        return request.held.get(identity) if request is not None else None

    def release_item(self, request_id: str, identity: str) -> None:
        """The model needs an item of this request no longer."""
        request = self._requests.get(request_id)
        if request is not None and request.held.pop(identity, None) is not None:
            self._store.release(identity)

    def forget(self, request_id: str) -> None:
        """The request has ended, however."""
        request = self._requests.pop(request_id, None)
        for identity in request.held if request is not None else ():
            self._store.release(identity)

    def _is_open(self, request: _Request, item: Wanted) -> bool:
        return item.identity not in request.held and not (item.has_media and item.identity in request.local)

    def _is_there(self, request: _Request, item: Wanted, params: object) -> bool:
        if item.identity in request.local and item.has_media:
            return True
        try:
            return self._try_hold(request, item, params) or self._may_wait(request)
        except ChiasmError as error:
            if not item.has_media:
                raise
            self._counters.add(f"local_encodes:{error.code}")
            request.local.add(item.identity)
            return True

    def _may_wait(self, request: _Request) -> bool:
        """False, for what is not there yet, until the request has waited long enough."""
        if self._clock() > request.deadline:
            raise DeadlineExceededError(f"An embedding was not there within {self._wait_s:g} s", hint="Raise wait_s")
        return False

    def _try_hold(self, request: _Request, item: Wanted, params: object) -> bool:
        held = request.held.get(item.identity)
        if held is not None:
            check_wanted(held.layout, held.metadata, item)
            return True
        stored = self._store.hold(item.identity)
        if stored is not None:
            if _fits(stored, item):
                request.held[item.identity] = stored
                self._counters.add("local_hits")
                return True
            self._store.release(item.identity)
        announcement, metadata = read_announcement(item.identity, params)
        check_expected(announcement.layout, metadata, self._expected)
        check_wanted(announcement.layout, metadata, item)
        pull = Pull(item.identity, announcement)
        try:
            if not self._pulls.is_done(pull, metadata, request.deadline):
                return False
        except OverloadedError:
            return False  # until others release something
        stored = self._store.hold(item.identity)
        if stored is None:  # made room for another one already
            return False
        if not _fits(stored, item):  # somebody else's pull of the identity came in between
            self._store.release(item.identity)
            return False
        request.held[item.identity] = stored
        return True


def _fits(stored: StoredEmbedding, item: Wanted) -> bool:
    try:
        check_wanted(stored.layout, stored.metadata, item)
    except ChiasmError:
        return False
    return True
