"""Fleets under the same requests, several times over, and how sure their differences are."""

from collections.abc import Callable, Sequence
from statistics import mean, stdev
from typing import Literal

import msgspec

from chiasm.simulator.calibration import Calibration
from chiasm.simulator.cluster import Cluster
from chiasm.simulator.run import simulate
from chiasm.simulator.size import check_size
from chiasm.simulator.summary import Objective, Summary, summarise
from chiasm.simulator.traces.trace import Trace
from chiasm.simulator.traffic import Traffic

Aim = Literal["ttft", "e2el", "goodput"]
"""What is to be best: mean time to the first token, mean time to the last, or good requests for the cost."""

_MIN_PART = 100
"""Requests of a trace that a run has at least, if there are as many."""
_T_95 = {1: 12.7, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
"""Student's t, two-sided 95 %, by degrees of freedom."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet and its runs, one for each seed."""

    cluster: Cluster
    runs: tuple[Summary, ...]

    @property
    def is_stable(self) -> bool:
        """Whether it kept up in every run."""
        return all(run.is_stable for run in self.runs)

    def figure(self, aim: Aim) -> float:
        """The mean over the runs: seconds, or good requests a second for each unit of cost."""
        return mean(self.figures(aim))

    def figures(self, aim: Aim) -> list[float]:
        """Of each run."""
        if aim == "goodput":
            return [run.goodput_per_s / self.cluster.cost for run in self.runs]
        return [run.all.ttft_s.mean if aim == "ttft" else run.all.e2el_s.mean for run in self.runs]


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """How much better one fleet is than another, relative to the other; `low` to `high` is the 95 % interval."""

    mean: float
    low: float
    high: float


def evaluate(
    clusters: Sequence[Cluster],
    traffic: Traffic,
    costs: Calibration,
    *,
    num_seeds: int,
    objective: Objective,
    trace: Trace | None = None,
    on_run: Callable[[str], None] = lambda _: None,
) -> list[Trial]:
    """Simulate each fleet once for each seed; the same seed is the same requests for all.

    With a trace, a run is one of `num_seeds` equal parts of it instead; of fewer where they would be too short.

    Raises:
        InvalidSettingError: It is more than can be simulated, or as `simulate` says.
    """
    if trace is not None:
        num_seeds = max(1, min(num_seeds, len(trace.requests) // _MIN_PART))
    seen = trace.requests if trace is not None else None
    check_size(clusters, traffic, costs, requests=seen, num_runs=num_seeds if seen is None else 1)
    trials = []
    for cluster in clusters:
        runs = []
        for seed in range(num_seeds):
            on_run(cluster.name)
            seeded = msgspec.structs.replace(traffic, seed=traffic.seed + seed)
            part = trace.part(seed, num_seeds) if trace is not None else None
            outcome = simulate(cluster, seeded, costs, requests=part)
            runs.append(summarise(outcome, media_threads=costs.media_threads, objective=objective))
        trials.append(Trial(cluster=cluster, runs=tuple(runs)))
    return trials


def ranked(trials: Sequence[Trial], aim: Aim) -> list[Trial]:
    """Best first; fleets that do not keep up come last."""
    sign = -1.0 if aim == "goodput" else 1.0
    return sorted(trials, key=lambda one: (not one.is_stable, sign * one.figure(aim)))


def gap(better: Trial, worse: Trial, aim: Aim) -> Gap:
    """Compare two fleets run by run."""
    sign = 1.0 if aim == "goodput" else -1.0
    pairs = zip(better.figures(aim), worse.figures(aim), strict=True)
    found = [sign * (ours - theirs) / theirs if theirs else 0.0 for ours, theirs in pairs]
    half = _T_95.get(len(found) - 1, 2.0) * stdev(found) / len(found) ** 0.5 if len(found) > 1 else float("inf")
    return Gap(mean=mean(found), low=mean(found) - half, high=mean(found) + half)
