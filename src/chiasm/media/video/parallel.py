"""One video decoded by several threads: stretches that begin with a keyframe, dealt out in turn, put together in order.

Decoding takes no less work this way, only less time; every thread opens the file for itself.
"""

import threading
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from queue import Empty, Full, Queue
from typing import Generic, TypeVar

_MAX_HELD_BYTES = 128 * 2**20
_STEP_S = 0.1
_END_TIMEOUT_S = 10.0
T = TypeVar("T")
Decode = Callable[[Sequence[Sequence[int]]], Iterator[T]]
"""Yields what becomes of each wanted time of each stretch, in order. Runs in a thread of its own."""


def stretches(wanted: Sequence[int], keyframes: Sequence[int]) -> list[list[int]]:
    """Divide rising times by the keyframes that decoding them begins with."""
    found: dict[int, list[int]] = {}
    for time in wanted:
        found.setdefault(max(bisect_right(keyframes, time) - 1, 0), []).append(time)
    return list(found.values())


def num_useful_threads(parts: Sequence[Sequence[int]], frame_bytes: int, num_threads: int) -> int:
    """How many threads can be at work within what frames may take that wait for those before them."""
    return max(1, min(num_threads, len(parts), _MAX_HELD_BYTES // max(frame_bytes, 1)))


def in_order(
    decode: Decode[T], parts: Sequence[Sequence[int]], frame_bytes: int, num_threads: int
) -> Generator[T, None, None]:
    """Yield what `decode` gives for all parts, in their order; closing the generator ends the threads.

    Raises what `decode` raises, where the order comes to it, and `RuntimeError` when a thread ends early.
    """
    room = max(1, _MAX_HELD_BYTES // max(frame_bytes, 1) // num_threads)
    workers = [_Worker(decode, parts[at::num_threads], room) for at in range(num_threads)]
    try:
        for number, part in enumerate(parts):
            worker = workers[number % num_threads]
            for _ in part:
                yield worker.next()
    finally:
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.join()


class _Worker(Generic[T]):
    """A thread and the bounded queue of what it has made."""

    def __init__(self, decode: Decode[T], parts: Sequence[Sequence[int]], room: int) -> None:
        self._made: Queue[T | BaseException] = Queue(room)
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(decode, parts), name="chiasm-video", daemon=True)
        self._thread.start()

    def next(self) -> T:
        while True:
            try:
                made = self._made.get(timeout=_STEP_S)
            except Empty:
                if self._thread.is_alive() or not self._made.empty():
                    continue
                raise RuntimeError("a thread that decodes a video has ended without a word") from None
            if isinstance(made, BaseException):
                raise made
            return made

    def stop(self) -> None:
        self._is_stopped.set()

    def join(self) -> None:
        self._thread.join(_END_TIMEOUT_S)

    def _run(self, decode: Decode[T], parts: Sequence[Sequence[int]]) -> None:
        try:
            for made in decode(parts):
                if not self._put(made):
                    return
        except BaseException as error:  # noqa: BLE001 - raised again where the order comes to it
            self._put(error)

    def _put(self, made: T | BaseException) -> bool:
        while not self._is_stopped.is_set():
            try:
                self._made.put(made, timeout=_STEP_S)
            except Full:
                continue
            return True
        return False
