"""A bounded memory."""

from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Lru(Generic[Value]):
    """Forgets what was used longest ago when there are more than `max_entries`."""

    def __init__(self, max_entries: int) -> None:
        self._entries: OrderedDict[str, Value] = OrderedDict()
        self._max_entries = max_entries

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> Value | None:
        """The value, used now; None when it is not there."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def put(self, key: str, value: Value) -> None:
        """Remember a value, used now."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)

    def peek(self, key: str) -> Value | None:
        """The value, without that being a use."""
        return self._entries.get(key)

    def replace(self, key: str, value: Value) -> None:
        """Another value for a key that is there, without that being a use."""
        self._entries[key] = value

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()

    def pop(self, key: str) -> None:
        """Forget a key, if it is there."""
        self._entries.pop(key, None)

    def values(self) -> list[Value]:
        """All values, longest unused first."""
        return list(self._entries.values())

    def items(self) -> list[tuple[str, Value]]:
        """All there is, longest unused first."""
        return list(self._entries.items())
