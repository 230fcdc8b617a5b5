"""Request ids: as unguessable as the system's randomness, without asking it for every request."""

import os

_ID_BYTES = 12
_NUM_AHEAD = 1024


class RequestIds:
    """Makes ids. Belongs to one event loop."""

    def __init__(self) -> None:
        self._ahead: list[str] = []

    def next(self, prefix: str) -> str:
        """Return an id that nobody has had."""
        if not self._ahead:
            text = os.urandom(_ID_BYTES * _NUM_AHEAD).hex()
            self._ahead = [text[at : at + 2 * _ID_BYTES] for at in range(0, len(text), 2 * _ID_BYTES)]
        return f"{prefix}-{self._ahead.pop()}"
