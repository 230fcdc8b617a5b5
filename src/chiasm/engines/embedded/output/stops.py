"""Stop strings over a stream of text deltas."""

import re


class StopMatcher:
    """Finds the stop string that completes first; the result does not depend on how the text is cut into deltas.

    Of several that complete at the same character, the longest wins.
    """

    __slots__ = ("_find_first_character", "_held", "_max_held_chars", "_stops")

    def __init__(self, stops: tuple[str, ...]) -> None:
        assert all(stops), "empty stop strings are refused where the request is checked"
        self._stops = stops
        self._find_first_character = re.compile("|".join(re.escape(stop[0]) for stop in stops)).search
        self._max_held_chars = max(map(len, stops)) - 1
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Text that is certain to precede any stop string, and the stop string that is now complete, if any.

        After a match the text that follows it is gone and nothing may be pushed.
        """
        if not self._held and self._find_first_character(text) is None:
            return text, None
        buffer = self._held + text
        match = self._first_match(buffer)
        if match is not None:
            start, stop = match
            self._held = ""
            return buffer[:start], stop
        cut = self._begin_of_partial(buffer)
        self._held = buffer[cut:]
        return buffer[:cut], None

    def flush(self) -> str:
        """Text held back that turned out to begin no stop string."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, buffer: str) -> tuple[int, str] | None:
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := buffer.find(stop)) >= 0]
        if not found:
            return None
        _, start, stop = min(found)
        return start, stop

    def _begin_of_partial(self, buffer: str) -> int:
        position = max(0, len(buffer) - self._max_held_chars)
        while (found := self._find_first_character(buffer, position)) is not None:
            tail = buffer[found.start() :]
            if any(stop.startswith(tail) for stop in self._stops):
                return found.start()
            position = found.end()
        return len(buffer)
