"""What several gateways let in together, and what asking the store costs: gateways' leases over a real store.

    python benchmarks/shared_limits.py redis://127.0.0.1:6379/0 [--gateways 3] [--seconds 20]

Every gateway is asked as fast as it answers. Printed: what came in against what the limit allows, and how long the
limit takes to judge, for a request with a slice at hand and for one that asks the store. The store is emptied.
"""

import argparse
import asyncio
import time

import redis.asyncio as client

from chiasm.errors import RateLimitedError
from chiasm.sharing.link import Link
from chiasm.sharing.presence import Presence
from chiasm.sharing.redis import RedisStore
from chiasm.tenancy.leases import Leases
from chiasm.tenancy.limits import Limits, Meter

_RATES = (6, 60, 600, 6000, 60_000)
_STEADY_S = 0.002
_BURST_SHARE = 10 / 60


class Front:
    """The part of a gateway that decides about limits."""

    def __init__(self, url: str, name: str, limits: Limits) -> None:
        self.link = Link(RedisStore(name, url))
        self.link.presence = Presence(is_serving=True)
        self.meter = Meter("t", limits, time.monotonic())
        self.leases = Leases(self.link, lambda: [self.meter])
        self.link.add(self.leases)
        self.num_let_in = 0
        self.num_refused = 0
        self.at_hand_s: list[float] = []
        self.asked_s: list[float] = []

    async def ask(self) -> None:
        """One request."""
        is_short = self.meter.is_short(time.monotonic())
        began_s = time.perf_counter()
        await self.leases.cover(self.meter)
        (self.asked_s if is_short else self.at_hand_s).append(time.perf_counter() - began_s)
        try:
            self.meter.admit(time.monotonic())
            self.num_let_in += 1
        except RateLimitedError:
            self.num_refused += 1

    async def flood(self, until_s: float) -> None:
        """Ask without end."""
        while time.monotonic() < until_s:
            await self.ask()
            await asyncio.sleep(_STEADY_S)


async def measure(url: str, num_gateways: int, seconds: float, per_minute: float) -> None:
    """One limit: print what came of it."""
    server = client.Redis.from_url(url)
    await server.flushdb()
    await server.aclose()
    fronts = [Front(url, f"g{number}", Limits(max_requests_per_minute=per_minute)) for number in range(num_gateways)]
    for front in (*fronts, *fronts):
        await front.link.round()
    rounds = [asyncio.create_task(front.link.run()) for front in fronts]
    began_s = time.monotonic()
    await asyncio.gather(*(front.flood(began_s + seconds) for front in fronts))
    took_s = time.monotonic() - began_s
    for task in rounds:
        task.cancel()
    for front in fronts:
        await front.link.aclose()
    num = sum(front.num_let_in for front in fronts)
    allowed = per_minute * took_s / 60 + max(1.0, per_minute * _BURST_SHARE)
    at_hand = sorted(one for front in fronts for one in front.at_hand_s)
    asked = sorted(one for front in fronts for one in front.asked_s)
    failures = sum(front.link.num_failures for front in fronts)
    num_refused = sum(front.num_refused for front in fronts)
    asks = f"asked {len(asked)}: p50 {_at(asked, 0.5):.2f} ms, p99 {_at(asked, 0.99):.2f} ms"
    print(
        f"{per_minute:>6g}/min: let in {num}, allowed {allowed:.1f}, refused {num_refused}; "
        f"at hand {len(at_hand)}: p50 {_at(at_hand, 0.5):.4f} ms; {asks}; store failures {failures}"
    )


def _at(values: list[float], share: float) -> float:
    return 1000 * values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


async def main() -> None:
    """Measure each rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--gateways", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    for per_minute in _RATES:
        await measure(given.url, given.gateways, given.seconds, per_minute)


if __name__ == "__main__":
    asyncio.run(main())
