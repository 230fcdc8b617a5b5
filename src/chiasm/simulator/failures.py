"""Workers that die and come back. What that means for requests is decided by production's ladder."""

from collections.abc import Iterable
from random import Random
from typing import Annotated

import msgspec
import simpy
from msgspec import Meta

from chiasm.errors import InvalidSettingError
from chiasm.simulator.clock import Process
from chiasm.simulator.front import Front

Seconds = Annotated[float, Meta(ge=0)]

_LEAST_DOWN_S = 1e-3
"""So that all who had work there have heard of a death before the worker is back."""


class Death(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A worker dies at a time and is back, with empty caches, `down_s` later."""

    worker: str
    at_s: Seconds
    down_s: Seconds = 10.0


class Failures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Deaths that are planned, and deaths by chance: each worker lives for `mean_up_s` on average; 0 is for ever."""

    planned: tuple[Death, ...] = ()
    mean_up_s: Seconds = 0.0
    mean_down_s: Seconds = 10.0
    seed: int = 0


def begin_failures(env: simpy.Environment, front: Front, failures: Failures) -> None:
    """Let workers die as described for as long as the simulation runs. They are noticed at once.

    Raises:
        InvalidSettingError: A death is planned for nobody.
    """
    names = tuple(front.workers)
    for death in failures.planned:
        if death.worker not in front.workers:
            raise InvalidSettingError(
                f"There is no worker '{death.worker}' to die", hint=f"There are {', '.join(names[:8])}."
            )
        env.process(_die(env, front, death.worker, [(death.at_s, death.down_s)]))
    if failures.mean_up_s:
        for name in names:
            env.process(_die(env, front, name, _lives(failures, name)))


def _lives(failures: Failures, name: str) -> Iterable[tuple[float, float]]:
    random = Random(f"{failures.seed}.{name}")
    while True:
        down_s = random.expovariate(1.0 / failures.mean_down_s) if failures.mean_down_s else 0.0
        yield random.expovariate(1.0 / failures.mean_up_s), down_s


def _die(env: simpy.Environment, front: Front, name: str, lives: Iterable[tuple[float, float]]) -> Process:
    for up_s, down_s in lives:
        yield env.timeout(up_s)
        worker, member = front.workers.get(name), front.fleet.find(name)
        if worker is None or member is None:
            return
        if not worker.is_alive:
            continue
        front.fleet.failed(member, "it died")
        worker.die()
        front.ledger.num_deaths += 1
        yield env.timeout(max(down_s, _LEAST_DOWN_S))
        worker.revive()
        front.ready(name)
