"""Several fleets with the same requests."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from chiasm.simulator.calibration import Calibration
from chiasm.simulator.cluster import Cluster
from chiasm.simulator.front import OnSpan
from chiasm.simulator.run import Changes, Policy, simulate
from chiasm.simulator.size import check_size
from chiasm.simulator.summary import Objective, Summary, summarise
from chiasm.simulator.traffic import Request, Traffic


def compare(  # noqa: PLR0913 - what a simulation takes
    clusters: Sequence[Cluster],
    traffic: Traffic,
    calibration: Calibration,
    *,
    policy: Policy = "adaptive",
    requests: Sequence[Request] | None = None,
    changes: Changes | None = None,
    objective: Objective | None = None,
    on_span: Callable[[Cluster], OnSpan | None] = lambda _: None,
    on_ended: Callable[[Cluster, int], None] = lambda *_: None,
) -> Iterator[Summary]:
    """Simulate each fleet; a summary comes as soon as it is there.

    `on_ended` is told now and then how many requests have ended on a fleet. Raises as `simulate` does, and
    `InvalidSettingError` where it is all too much.
    """
    check_size(clusters, traffic, calibration, requests=requests, changes=changes)
    for cluster in clusters:
        outcome = simulate(
            cluster,
            traffic,
            calibration,
            policy=policy,
            requests=requests,
            changes=changes,
            on_span=on_span(cluster),
            on_ended=partial(on_ended, cluster),
        )
        yield summarise(outcome, media_threads=calibration.media_threads, objective=objective)
