"""Brings announced embeddings into the verified store, on threads of its own, each once for all who wait for it."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import NamedTuple

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


class Pull(NamedTuple):
    """What is wanted from where; of one value there is one pull at a time."""

    identity: str
    announcement: Announcement


class _Running(NamedTuple):
    future: Future[None]
    deadline: float


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
        self._running: dict[Pull, _Running] = {}
        self._threads = ThreadPoolExecutor(num_threads, "chiasm-ec-pull")

    def is_done(self, pull: Pull, metadata: Mapping[str, object], deadline: float) -> bool:
        """Start a pull unless it is under way; True once when it has ended well. The seal binds `metadata` to the pull.

        How a pull ended that somebody else had started before counts only when it ended well.

        Raises:
            ChiasmError: It failed; asking again starts it anew.
        """
        running = self._running.get(pull)
        if running is None:
            self._start(pull, metadata, deadline)
            return False
        if not running.future.done():
            return False
        del self._running[pull]
        error = running.future.exception()
        if error is None:
            return True
        if running.deadline < deadline:
            self._start(pull, metadata, deadline)
            return False
        if isinstance(error, ChiasmError):
            raise error
        raise TransferError("The embedding could not be taken") from error

    def wait_any(self, timeout_s: float) -> None:
        """Return when a pull ends, at once when none is under way, or after `timeout_s`."""
        pending = [running.future for running in self._running.values() if not running.future.done()]
        wait(pending, timeout_s, FIRST_COMPLETED)

    def close(self) -> None:
        """Start nothing more; what is under way ends at its own deadline."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self, pull: Pull, metadata: Mapping[str, object], deadline: float) -> None:
        if len(self._running) >= _MAX_PULLS:  # nobody asked how some have ended
            self._running = {key: running for key, running in self._running.items() if not running.future.done()}
        if len(self._running) >= _MAX_PULLS:
            raise OverloadedError(f"{_MAX_PULLS} embeddings are being pulled already")
        self._running[pull] = _Running(self._threads.submit(self._run, pull, metadata, deadline), deadline)

    def _run(self, pull: Pull, metadata: Mapping[str, object], deadline: float) -> None:
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
        self._store.put(pull.identity, said.layout, metadata, data)
        self._counters.add("pulls")
        self._counters.add("pulled_bytes", said.layout.num_bytes)
        self._counters.add("pull_seconds", self._clock() - started_at)
