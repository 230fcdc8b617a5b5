"""From the engine's thread to the event loop: events of one request, delivered in as few wake-ups as possible."""

import asyncio
from collections import deque

from chiasm.errors import ChiasmError
from chiasm.protocol.generation import ChoiceFinished, TokenEvent


class Mailbox:
    """An `EventSink` for all choices of one request. `get` is for one reader on the loop it was made on."""

    def __init__(self, num_choices: int, *, stream: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: deque[TokenEvent | ChoiceFinished] = deque()
        self._error: ChiasmError | None = None
        self._arrived = asyncio.Event()
        self._is_notified = False
        self._stream = stream
        self._num_open = num_choices

    @property
    def is_finished(self) -> bool:
        """Whether every choice has ended well."""
        return not self._num_open

    @property
    def has_events(self) -> bool:
        """Whether `get` would return at once."""
        return bool(self._events)

    def push(self, events: list[TokenEvent | ChoiceFinished]) -> None:
        """See `EventSink`."""
        self._events.extend(events)
        self._num_open -= sum(isinstance(event, ChoiceFinished) for event in events)
        if events and (self._stream or not self._num_open):
            self._notify()

    def fail(self, error: ChiasmError) -> None:
        """See `EventSink`."""
        self._error = error
        self._notify()

    async def get(self) -> list[TokenEvent | ChoiceFinished]:
        """Wait for events and take all there are. Raises the error the request ended with.

        Returns none when every choice has ended: the last events may be taken before their push has counted the ends.
        """
        while not self._events:
            if self._error is not None:
                raise self._error
            if self.is_finished:
                return []
            await self._arrived.wait()
            self._arrived.clear()
        taken = []
        while self._events:
            taken.append(self._events.popleft())
        return taken

    def _notify(self) -> None:
        if not self._is_notified:
            self._is_notified = True
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:  # the loop is closed: nobody reads any more
                return

    def _wake(self) -> None:
        self._is_notified = False
        self._arrived.set()
