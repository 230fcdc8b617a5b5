"""Making a plan: times and classes from a seed, then all bodies, into files."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from chiasm.bench.workload.arrivals import Pattern, arrival_times_s
from chiasm.bench.workload.bodies import BodyMaker, Dialect
from chiasm.bench.workload.classes import RequestClass
from chiasm.bench.workload.plan import BODIES, SCHEDULE, Phase, PlannedRequest
from chiasm.errors import InvalidSettingError

_MAX_PLAN_BYTES = 16 * 2**30


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """How much is sent, and when. The phases follow each other without a pause; only the middle one is measured."""

    pattern: Pattern = "poisson"
    rate_per_s: float
    gamma_shape: float = 1.0
    num_warmup: int = 0
    num_measured: int
    num_cooldown: int = 0

    @property
    def num_requests(self) -> int:
        """All of them."""
        return self.num_warmup + self.num_measured + self.num_cooldown


Timetable = list[tuple[float, RequestClass]]


def timetable(shape: Shape, classes: tuple[RequestClass, ...], seed: str) -> Timetable:
    """Times and classes of a load of a constant mean rate."""
    times = arrival_times_s(shape.pattern, shape.rate_per_s, shape.num_requests, seed, gamma_shape=shape.gamma_shape)
    rng = random.Random(f"{seed}:classes")  # noqa: S311 - reproducible, not secret
    chosen = rng.choices(classes, weights=[one.weight for one in classes], k=len(times))
    return list(zip(times, chosen, strict=True))


def phases(num_warmup: int, num_measured: int, num_requests: int) -> list[Phase]:
    """The phase of each request."""
    counts: dict[Phase, int] = {"warmup": num_warmup, "measured": num_measured}
    counts["cooldown"] = num_requests - num_warmup - num_measured
    return [phase for phase, count in counts.items() for _ in range(count)]


def write_plan(
    folder: Path,
    table: Timetable,
    phase_of: Sequence[Phase],
    dialect: Dialect,
    seed: str,
    on_progress: Callable[[int], None] = lambda _: None,
    *,
    text_seed: str | None = None,
) -> None:
    """Make all bodies and write them and the schedule into an existing folder. `text_seed` is that of `BodyMaker`.

    Raises:
        InvalidSettingError: The bodies take more than the 16 GiB that are allowed.
    """
    maker = BodyMaker(tuple({kind.name: kind for _, kind in table}.values()), dialect, seed, text_seed)
    rng = random.Random(f"{seed}:cancelled")  # noqa: S311 - reproducible, not secret
    offset = 0
    with (folder / BODIES).open("wb") as bodies, (folder / SCHEDULE).open("wb") as schedule:
        for index, ((at_s, kind), phase) in enumerate(zip(table, phase_of, strict=True)):
            body = maker.make(kind, index)
            bodies.write(body)
            line = PlannedRequest(
                index=index,
                request_class=kind.name,
                kind=kind.kind,
                phase=phase,
                at_s=at_s,
                offset=offset,
                num_body_bytes=len(body),
                output_tokens=kind.output_tokens if kind.kind in ("chat", "completions") else 0,
                cancel_after_s=kind.cancel_after_s if rng.random() < kind.cancel_share else None,
            )
            schedule.write(msgspec.json.encode(line) + b"\n")
            offset += len(body)
            if offset > _MAX_PLAN_BYTES:
                raise InvalidSettingError(
                    f"The bodies of {index + 1} of {len(table)} requests take more than 16 GiB",
                    hint="Send fewer requests, or fewer or smaller pictures",
                )
            on_progress(index + 1)
