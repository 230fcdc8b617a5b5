"""Workers that run but have not answered for long."""

from collections.abc import Iterable

SICK_S = 30.0


class Sick:
    """Remembers since when who does not answer."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}

    def of(self, down: Iterable[str], now_s: float) -> list[str]:
        """Those of `down` that were so at each look for half a minute; once named, their time begins anew."""
        self._since_s = {name: self._since_s.get(name, now_s) for name in down}
        over = [name for name, began_s in self._since_s.items() if now_s - began_s > SICK_S]
        for name in over:
            del self._since_s[name]
        return over
