"""Straight lines through measured points."""

from collections.abc import Sequence
from itertools import combinations
from math import ceil
from statistics import median

import msgspec
import numpy as np
import numpy.typing as npt

from chiasm.simulator.calibration import Cost

Column = npt.NDArray[np.float64]
Point = tuple[float, float]
"""Units, and seconds."""
_HELPS = 1e-9
"""Less of squared relative errors than this is no better fit."""


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """A cost and how well it fits: `error` is the mean distance of the points, relative to what is predicted.

    Attributes:
        quadratic_s: For each squared unit, besides the cost.
    """

    cost: Cost
    num_points: int
    error: float
    quadratic_s: float = 0.0


def fitted(points: Sequence[Point]) -> Fit:
    """The line that is nearest to the medians of repeated points, in relative terms; never less than nothing.

    Relative, since a millisecond more matters for a short prompt and not for a long one.
    """
    x, y = _medians(points)
    fixed_s, per_unit_s = _line(x, y)
    predicted = fixed_s + per_unit_s * x
    errors = np.abs(y - predicted) / np.maximum(predicted, 1e-12)
    return Fit(cost=Cost(fixed_s=fixed_s, per_unit_s=per_unit_s), num_points=len(points), error=float(errors.mean()))


def curved(points: Sequence[Point], units_at_once: float = float("inf")) -> Fit:
    """As `fitted`, with a part that grows with the square; the fixed cost comes again each so many units.

    Of the curves that fit, each part is nothing or more, and a part that helps nothing is left out.
    """
    x, y = _medians(points)
    columns = np.stack([np.array([ceil(units / units_at_once) or 1 for units in x]), x, x * x], axis=1)
    shares = columns / np.maximum(y, 1e-9)[:, None]
    best, least = np.zeros(3), float("inf")
    for count in range(1, 4):
        for chosen in combinations(range(3), count):
            if count > len(x):
                continue
            found = np.zeros(3)
            found[list(chosen)], *_ = np.linalg.lstsq(shares[:, chosen], np.ones(len(x)), rcond=None)
            missed = float(((shares @ found - 1.0) ** 2).sum())
            if (found >= 0).all() and missed < least - _HELPS:
                best, least = found, missed
    predicted = columns @ best
    errors = np.abs(y - predicted) / np.maximum(predicted, 1e-12)
    fixed_s, per_unit_s, quadratic_s = map(float, best)
    return Fit(
        cost=Cost(fixed_s=fixed_s, per_unit_s=per_unit_s),
        num_points=len(points),
        error=float(errors.mean()),
        quadratic_s=quadratic_s,
    )


def _medians(points: Sequence[Point]) -> tuple[Column, Column]:
    repeated: dict[float, list[float]] = {}
    for units, seconds in points:
        repeated.setdefault(units, []).append(seconds)
    values = [median(values) for values in repeated.values()]
    return np.array(list(repeated), dtype=np.float64), np.array(values, dtype=np.float64)


def _line(units: Column, seconds: Column) -> tuple[float, float]:
    if len(units) == 1:
        return float(seconds[0]), 0.0
    weights = 1.0 / np.maximum(seconds, 1e-9)
    design = np.stack([weights, weights * units], axis=1)
    (fixed_s, per_unit_s), *_ = np.linalg.lstsq(design, weights * seconds, rcond=None)
    if per_unit_s < 0:
        return float(np.average(seconds, weights=weights)), 0.0
    if fixed_s < 0:
        return 0.0, float((weights * weights * units * seconds).sum() / (weights * weights * units * units).sum())
    return float(fixed_s), float(per_unit_s)
