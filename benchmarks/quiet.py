"""Whether a machine has nothing else to do, and goes on at the same pace, while something is measured on it."""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec

MOST_BUSY = 0.10
"""Share of the cores that may be in use while nothing is asked; servers that wait take some."""
MOST_SPREAD = 0.10
"""How much longer the same arithmetic may take at the median look than at the quickest. What is measured are medians,
too, so that a second that others on the same host take away does not show in them."""
_LOOP = 200_000
_TIMES = 5


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """Share of all cores in use while nothing was asked, and seconds of arithmetic that is always the same."""

    busy: float
    pace_s: float


def look(seconds: float = 1.0) -> Look:
    """Wait and watch; ask for nothing meanwhile."""
    used_before, all_before = _ticks()
    time.sleep(seconds)
    used, everything = _ticks()
    return Look(busy=(used - used_before) / max(everything - all_before, 1), pace_s=median(map(_pace_s, range(_TIMES))))


def complaints(looks: Sequence[Look]) -> list[str]:
    """What was not quiet, in words; nothing where all was."""
    found = []
    busiest = max(one.busy for one in looks)
    if busiest > MOST_BUSY:
        found.append(f"Something else used up to {busiest:.0%} of the cores while nothing was asked")
    quickest, usual = min(one.pace_s for one in looks), median(one.pace_s for one in looks)
    if usual > quickest * (1.0 + MOST_SPREAD):
        found.append(
            f"The same arithmetic took {1e3 * quickest:.1f} ms at best and {1e3 * usual:.1f} ms at the median look"
        )
    return found


def _pace_s(_: int) -> float:
    started_s = time.perf_counter()
    sum(number & 7 for number in range(_LOOP))
    return time.perf_counter() - started_s


def _ticks() -> tuple[int, int]:
    """Those in which cores worked, or were taken away by another machine on the same host, and all."""
    ticks = [int(one) for one in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)
