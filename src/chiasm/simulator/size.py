"""How much work simulations are, so that what would not end in a working day is refused before it begins."""

from collections.abc import Sequence
from math import ceil

from chiasm.errors import InvalidSettingError
from chiasm.simulator.calibration import Calibration
from chiasm.simulator.cluster import Cluster
from chiasm.simulator.run import Changes
from chiasm.simulator.traffic import Request, Traffic

MAX_PIECES = 50_000_000
"""Of all simulations that are asked for at once; about an hour on one core."""
_PIECES_OF_A_DEATH = 50
"""All that is known of a worker's caches is looked through."""
_LEAST_LIFE_S = 1e-3


def check_size(
    clusters: Sequence[Cluster],
    traffic: Traffic,
    calibration: Calibration,
    *,
    requests: Sequence[Request] | None = None,
    changes: Changes | None = None,
    num_runs: int = 1,
) -> None:
    """See that simulations of these fleets, each so many times, end within an hour or so.

    Raises:
        InvalidSettingError: They are too much; the message says what is possible.
    """
    by_request = _pieces_of(requests, calibration) if requests is not None else _pieces_like(traffic, calibration)
    num_requests = traffic.num_requests if requests is None else len(requests)
    span_s = num_requests / traffic.rate_per_s
    by_fleet = sum(_pieces_beside(one, changes or Changes(), span_s) for one in clusters)
    total = num_runs * (len(clusters) * by_request + by_fleet)
    if total <= MAX_PIECES:
        return
    most, times = int(num_requests * MAX_PIECES / total), f", {num_runs} times each," if num_runs > 1 else ""
    plural = "s" if len(clusters) != 1 else ""
    raise InvalidSettingError(
        f"To simulate {num_requests:,} requests on {len(clusters)} fleet{plural}{times} is about "
        f"{total / 1e6:,.0f} million pieces of work: requests, pictures, steps of their prompts, and what "
        f"changes in fleets meanwhile. {MAX_PIECES / 1e6:,.0f} million are the most",
        hint=f"About {most:,} requests like these would do, or fewer pictures, shorter prompts, fewer fleets."
        if most
        else "Ask for fewer pictures, shorter prompts, fewer deaths or fewer fleets.",
    )


def _pieces_of(requests: Sequence[Request], calibration: Calibration) -> float:
    return float(sum(1 + len(one.pictures) + _num_steps(one.prompt_tokens, calibration) for one in requests))


def _pieces_like(traffic: Traffic, calibration: Calibration) -> float:
    total = sum(one.share for one in traffic.classes)
    each = sum(
        one.share * (1 + one.num_images + _num_steps(one.text_tokens + one.num_images * one.visual_tokens, calibration))
        for one in traffic.classes
    )
    return traffic.num_requests * each / total


def _num_steps(num_tokens: int, calibration: Calibration) -> int:
    return ceil(num_tokens / calibration.max_step_tokens)


def _pieces_beside(cluster: Cluster, changes: Changes, span_s: float) -> float:
    """What there is to do for a fleet besides its requests."""
    num_workers, found = len(cluster.workers), float(len(cluster.workers))
    if changes.failures is not None and changes.failures.mean_up_s:
        life_s = changes.failures.mean_up_s + max(changes.failures.mean_down_s, _LEAST_LIFE_S)
        found += _PIECES_OF_A_DEATH * num_workers * span_s / life_s
    if changes.scaling is not None:
        found += span_s / changes.scaling.period_s
    return found
