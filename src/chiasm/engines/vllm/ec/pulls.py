"""Brings announced embeddings into the verified store, on threads of its own, each once for all who wait for it."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import msgspec

from chiasm.connectors.base import Buffer, checksum
from chiasm.engines.vllm.ec.announcement import Announcement
from chiasm.engines.vllm.ec.counters import Counters
from chiasm.engines.vllm.ec.verified_store import VerifiedStore
from chiasm.errors import (
    ChecksumMismatchError,
    ChiasmError,
    DeadlineExceededError,
    OverloadedError,
    TransferError,
)

Fetch = Callable[[str, int, float], Buffer]
"""Takes the bytes at an address: `(address, num_bytes, timeout_s)`; raises `TransferError`."""
_MAX_PULLS = 1024


class Pull(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted from where; of one value there is one pull at a time."""

    identity: str
    announcement: Announcement
    metadata: Mapping[str, object]


class Pulls:
    """`start` and `outcome` are for one thread; the work is done by `num_threads` others."""

    def __init__(
        self,
        fetches: Mapping[str, Fetch],
        store: VerifiedStore,
        counters: Counters,
        *,
        num_threads: int = 8,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._fetches = fetches
        self._store = store
        self._counters = counters
        self._futures: dict[tuple[str, str], Future[None]] = {}
        self._threads = ThreadPoolExecutor(num_threads, "chiasm-ec-pull")

    def is_done(self, pull: Pull, deadline: float) -> bool:
        """Start a pull unless it is under way; True once when it has ended well.

        Raises:
            ChiasmError: It failed; asking again starts it anew.
        """
        key = (pull.identity, pull.announcement.seal)
        future = self._futures.get(key)
        if future is None:
            self._make_room()
            self._futures[key] = future = self._threads.submit(self._run, pull, deadline)
        if not future.done():
            return False
        del self._futures[key]
        error = future.exception()
        if isinstance(error, ChiasmError):
            raise error
        if error is not None:
            raise TransferError("The embedding could not be taken") from error
        return True

    def wait_any(self, timeout_s: float) -> None:
        """Return when a pull ends, at once when none is under way, or after `timeout_s`."""
        wait([future for future in self._futures.values() if not future.done()], timeout_s, FIRST_COMPLETED)

    def close(self) -> None:
        """Start nothing more; what is under way ends at its own deadline."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _make_room(self) -> None:
        if len(self._futures) < _MAX_PULLS:
            return
        for key in [key for key, future in self._futures.items() if future.done()]:  # nobody asked how they ended
            del self._futures[key]
        if len(self._futures) >= _MAX_PULLS:
            raise OverloadedError(f"{_MAX_PULLS} embeddings are being pulled already")

    def _run(self, pull: Pull, deadline: float) -> None:
        started_at = self._clock()
        if started_at >= deadline:
            raise DeadlineExceededError("The embedding was not pulled in time")
        said = pull.announcement
        fetch = self._fetches.get(said.transport)
        if fetch is None:
            raise TransferError(f"Embeddings are not taken over '{said.transport}' here", hint="Set transport to 'tcp'")
        data = fetch(said.address, said.layout.num_bytes, deadline - started_at)
        if checksum(data) != said.checksum:
            raise ChecksumMismatchError("The embedding's bytes are not those that were published")
        self._store.put(pull.identity, said.layout, pull.metadata, data)
        self._counters.add("pulls")
        self._counters.add("pulled_bytes", said.layout.num_bytes)
        self._counters.add("pull_seconds", self._clock() - started_at)
