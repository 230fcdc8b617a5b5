"""Work that workers died of: what was under way at several of their deaths is not given to another one."""

import hashlib
from collections.abc import Callable, Collection, Sequence

import msgspec

from chiasm.errors import QuarantinedError
from chiasm.protocol.generation import ChatPrompt, TextPrompt, TokensPrompt
from chiasm.protocol.media import MediaItem
from chiasm.routing.clock import Clock
from chiasm.routing.lru import Lru
from chiasm.settings import RoutingSettings

_MAX_SUSPECTS = 1024
_SAME_DEATH_S = 0.5
"""No worker starts and dies again so soon: calls that fail within it at one server tell of one death."""
_TOLD_DEATH_S = 3.0
"""The same for what other gateways tell, which is late."""


def _nobody(*_: object) -> None:
    """Without other gateways there is nobody to tell."""


class Quarantine:
    """Remembers what was under way at deaths: pictures by identity, requests by prompt and pictures.

    What runs beside work that kills is suspected with it until it is served. Belongs to one event loop.

    Attributes:
        on_died: Told of work and of the worker that died while it had it.
        on_served: Told of suspected work that was done.
    """

    def __init__(
        self, settings: RoutingSettings, clock: Clock, server_of: Callable[[str], str] = lambda worker: worker
    ) -> None:
        """Take limits and time; `server_of` says what dies when a worker does."""
        self._settings = settings
        self._clock = clock
        self._server_of = server_of
        self._is_closed = False
        self.on_died: Callable[[tuple[str, ...], str], None] = _nobody
        self.on_served: Callable[[tuple[str, ...]], None] = _nobody
        self._deaths: Lru[tuple[tuple[str, float], ...]] = Lru(_MAX_SUSPECTS)  # of each work: who died, and when

    def __len__(self) -> int:
        return len(self._deaths)

    def died(self, work: Collection[str], worker: str) -> None:
        """A worker died while it had this work."""
        if self._is_closed:
            return
        self._suspect(work, worker, _SAME_DEATH_S)
        self.on_died(tuple(work), worker)

    def told_died(self, work: Collection[str], worker: str) -> None:
        """Another gateway saw it die."""
        self._suspect(work, worker, _TOLD_DEATH_S)

    def close(self) -> None:
        """The fleet is given up: who ends from now on has not died of anything."""
        self._is_closed = True

    def served(self, work: Collection[str]) -> None:
        """It was done, and whoever did it lives."""
        suspected = tuple(name for name in work if self._deaths.get(name) is not None)
        if suspected:
            self.told_served(suspected)
            self.on_served(suspected)

    def told_served(self, work: Collection[str]) -> None:
        """Another gateway saw it done."""
        for name in work:
            self._deaths.pop(name)

    def check(self, work: Collection[str]) -> None:
        """Raise `QuarantinedError` for work that workers died of lately."""
        limit = self._settings.quarantine_deaths
        if limit and any(len(self._recent(name)) >= limit for name in work):
            raise QuarantinedError(
                f"{limit} workers died while they had this request or one of its pictures",
                hint=f"Send something else; this is not tried again for {self._settings.quarantine_s:g} s",
            )

    def _suspect(self, work: Collection[str], worker: str, same_s: float) -> None:
        now_s, server = self._clock.now_s(), self._server_of(worker)
        for name in work:
            deaths = self._recent(name)
            if not any(one == server and now_s - at_s < same_s for one, at_s in deaths):
                self._deaths.put(name, (*deaths, (server, now_s)))

    def _recent(self, name: str) -> tuple[tuple[str, float], ...]:
        after_s = self._clock.now_s() - self._settings.quarantine_s
        return tuple(death for death in self._deaths.get(name) or () if death[1] > after_s)


class Case:
    """What one request may be suspected of. Costs nothing while nothing has died."""

    def __init__(
        self,
        quarantine: Quarantine,
        items: Sequence[MediaItem],
        prompt: ChatPrompt | TextPrompt | TokensPrompt | None = None,
    ) -> None:
        """Take a generation, or, without a prompt, items to encode."""
        self._quarantine = quarantine
        self._items = items
        self._prompt = prompt

    def died(self, worker: str, pictures: Collection[str]) -> None:
        """A worker died over some pictures, or, with none, over the request."""
        self._quarantine.died(pictures or self._itself(), worker)

    def served(self) -> None:
        """The request was served."""
        if len(self._quarantine):
            self._quarantine.served(self._all())

    def check(self) -> None:
        """Raise `QuarantinedError` when it is not to be tried."""
        if len(self._quarantine):
            self._quarantine.check(self._all())

    def _all(self) -> tuple[str, ...]:
        return (*(item.identity for item in self._items), *self._itself())

    def _itself(self) -> tuple[str, ...]:
        if self._prompt is None:
            return ()
        digest = hashlib.sha256(msgspec.msgpack.encode(self._prompt))
        for item in self._items:
            digest.update(item.identity.encode())
        return (digest.hexdigest(),)
