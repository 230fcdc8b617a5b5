"""Limits that hold over several gateways: slices of rates and permits, leased from the store.

A request asks the store only when it would otherwise be refused; slices for tenants that are active are fetched
between requests, and idle ones given back. Without the store each gateway allows its part of the limits.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from itertools import islice

from chiasm.sharing.link import Link
from chiasm.tenancy.limits import Meter

_MAX_ASKS = 64
"""In one call. The rest of a round's follow in the next ones."""


class Leases:
    """See the module. A `Participant` of the link; belongs to its event loop."""

    def __init__(
        self, link: Link, meters: Callable[[], Collection[Meter]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._link = link
        self._meters = meters
        self._clock = clock
        self._lock = asyncio.Lock()
        self._asking: dict[Meter, asyncio.Task[None]] = {}
        self._last_round_s = clock()
        self._is_leasing = False

    def adopt(self, meter: Meter) -> None:
        """Give a new meter the state that all have."""
        if self._is_leasing:
            meter.lease(self._clock())
        elif self._link.is_degraded:
            meter.keep_part(1 / self._link.num_sharing, self._clock())

    async def cover(self, meter: Meter) -> None:
        """Ask the store where the request at hand would be refused for what this gateway has; never raises for it."""
        if not self._is_leasing or not meter.is_short(self._clock()):
            return
        meter.num_asking += 1
        try:
            for _ in range(2):  # who comes while others ask was not counted yet
                task = self._asking.get(meter)
                if task is None:
                    task = self._asking[meter] = asyncio.create_task(self._ask((meter,), is_urgent=True))
                    task.add_done_callback(lambda _: self._asking.pop(meter, None))
                await asyncio.wait([task])
                if not meter.is_short(self._clock()):
                    return
        finally:
            meter.num_asking -= 1

    async def round(self) -> None:
        """See `Participant`."""
        if not self._link.is_shared:
            return
        now_s, meters = self._clock(), self._meters()
        if not self._is_leasing:
            self._is_leasing = True
            for meter in meters:
                meter.lease(now_s)
        elapsed_s, self._last_round_s = max(now_s - self._last_round_s, 1e-3), now_s
        for meter in meters:
            meter.note_pace(elapsed_s)
        waiting = iter(list(meters))
        while batch := tuple(islice(waiting, _MAX_ASKS)):
            await self._ask(batch)

    def lost(self) -> None:
        """See `Participant`."""
        self._is_leasing = False
        for meter in self._meters():
            meter.keep_part(1 / self._link.num_sharing, self._clock())

    async def _ask(self, meters: Iterable[Meter], *, is_urgent: bool = False) -> None:
        """One call for rates, one for permits, where there is anything to ask; in order, since answers are states."""
        async with self._lock:
            await self._ask_rates(meters, is_urgent=is_urgent)
            await self._ask_permits(meters, is_urgent=is_urgent)

    async def _ask_rates(self, meters: Iterable[Meter], *, is_urgent: bool) -> None:
        asked = [(meter, *one) for meter in meters for one in meter.rate_asks(self._link.num_gateways)]
        if not asked:
            return
        try:
            grants = await self._link.call(lambda store: store.draw([ask for _, _, ask in asked]), is_urgent=is_urgent)
        except ConnectionError:
            for _, budget, ask in asked:
                budget.fail(ask)
            return
        now_s = self._clock()
        for (meter, budget, ask), grant in zip(asked, grants, strict=True):
            budget.settle(ask, grant, now_s)
            if grant.wait_s and ask.wanted:
                meter.be_quiet(grant.wait_s, now_s)

    async def _ask_permits(self, meters: Iterable[Meter], *, is_urgent: bool) -> None:
        asks = [(meter, ask) for meter in meters if (ask := meter.permit_ask(self._link.num_gateways)) is not None]
        if not asks:
            return
        try:
            answers = await self._link.call(lambda store: store.hold([ask for _, ask in asks]), is_urgent=is_urgent)
        except ConnectionError:
            return
        for (meter, ask), num_permits in zip(asks, answers, strict=True):
            meter.permit(ask, num_permits, self._clock())
