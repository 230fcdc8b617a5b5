"""Straight lines through measured points."""

from collections.abc import Sequence
from statistics import median

import msgspec
import numpy as np
import numpy.typing as npt

from chiasm.simulator.calibration import Cost

Column = npt.NDArray[np.float64]
Point = tuple[float, float]
"""Units, and seconds."""


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """A cost and how well it fits: `error` is the mean distance of the points, relative to what is predicted."""

    cost: Cost
    num_points: int
    error: float


def fitted(points: Sequence[Point]) -> Fit:
    """The line that is nearest to the medians of repeated points, in relative terms; never less than nothing.

    Relative, since a millisecond more matters for a short prompt and not for a long one.
    """
    repeated: dict[float, list[float]] = {}
    for units, seconds in points:
        repeated.setdefault(units, []).append(seconds)
    x = np.array(list(repeated), dtype=np.float64)
    y = np.array([median(values) for values in repeated.values()])
    fixed_s, per_unit_s = _line(x, y)
    predicted = fixed_s + per_unit_s * x
    errors = np.abs(y - predicted) / np.maximum(predicted, 1e-12)
    return Fit(cost=Cost(fixed_s=fixed_s, per_unit_s=per_unit_s), num_points=len(points), error=float(errors.mean()))


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
