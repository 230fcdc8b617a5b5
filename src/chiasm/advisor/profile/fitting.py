"""Straight lines through measured points."""

from collections.abc import Iterable, Sequence
from itertools import combinations
from math import ceil
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from chiasm.simulator.calibration import Cost

Column = npt.NDArray[np.float64]
Point = tuple[float, float]
"""Units, and seconds."""
StepPoint = tuple[float, float, float]
"""Answers that run, tokens of context of all of them, and seconds."""
_HELPS = 1e-9
"""Less of squared relative errors than this is no better fit."""


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """A cost and how well it fits: `error` is the mean distance of the points, relative to what is predicted.

    Attributes:
        quadratic_s: For each squared unit, besides the cost.
        context_s: Of steps, for each token of context.
        residuals: Of each size, its units and how far what it usually takes is off, relative to what is predicted.
    """

    cost: Cost
    num_points: int
    error: float
    quadratic_s: float = 0.0
    context_s: float = 0.0
    residuals: tuple[tuple[float, float], ...] = ()


def middle_mean(values: Iterable[float]) -> float:
    """The mean without the lowest and the highest quarter; of three values, the middle one.

    What is predicted from costs are means. Where the same work takes one of two times, as on cores that threads share
    as the kernel happens to place them, a median is one of the two, and a plain mean is every hiccup's.
    """
    found = sorted(values)
    left_out = (len(found) + 1) // 4
    return fmean(found[left_out : len(found) - left_out])


def fitted(points: Sequence[Point]) -> Fit:
    """The line that is nearest to the middle means of repeated points, in relative terms; never less than nothing.

    Relative, since a millisecond more matters for a short prompt and not for a long one.
    """
    x, y = _repeated(points)
    fixed_s, per_unit_s = _line(x, y)
    predicted = fixed_s + per_unit_s * x
    return Fit(cost=Cost(fixed_s=fixed_s, per_unit_s=per_unit_s), num_points=len(points), **_distances(x, y, predicted))


def curved(points: Sequence[Point], units_at_once: float = float("inf")) -> Fit:
    """As `fitted`, with a part that grows with the square; the fixed cost comes again each so many units.

    Of the curves that fit, each part is nothing or more, and a part that helps nothing is left out.
    """
    x, y = _repeated(points)
    columns = np.stack([np.array([ceil(units / units_at_once) or 1 for units in x]), x, x * x], axis=1)
    (fixed_s, per_unit_s, quadratic_s), predicted = _nonnegative(columns, y)
    cost = Cost(fixed_s=fixed_s, per_unit_s=per_unit_s)
    return Fit(cost=cost, num_points=len(points), quadratic_s=quadratic_s, **_distances(x, y, predicted))


def fitted_steps(points: Sequence[StepPoint]) -> Fit:
    """What steps cost by the answers that run and by their context, told apart; each part is nothing or more."""
    repeated: dict[tuple[float, float], list[float]] = {}
    for running, context, seconds in points:
        repeated.setdefault((running, context), []).append(seconds)
    units = np.array(list(repeated), dtype=np.float64)
    y = np.array([middle_mean(values) for values in repeated.values()], dtype=np.float64)
    (fixed_s, per_unit_s, context_s), predicted = _nonnegative(np.column_stack([np.ones(len(y)), units]), y)
    cost = Cost(fixed_s=fixed_s, per_unit_s=per_unit_s)
    distances = _distances(units[:, 0], y, predicted)
    return Fit(cost=cost, num_points=len(points), context_s=context_s, **distances)


def _nonnegative(columns: Column, y: Column) -> tuple[tuple[float, float, float], Column]:
    """What each of three columns counts for, and what they predict; by the squares of relative errors."""
    shares = columns / np.maximum(y, 1e-9)[:, None]
    best, least = np.zeros(3), float("inf")
    for count in range(1, 4):
        for chosen in combinations(range(3), count):
            if count > len(y):
                continue
            found = np.zeros(3)
            found[list(chosen)], *_ = np.linalg.lstsq(shares[:, chosen], np.ones(len(y)), rcond=None)
            missed = float(((shares @ found - 1.0) ** 2).sum())
            if (found >= 0).all() and missed < least - _HELPS:
                best, least = found, missed
    first, second, third = map(float, best)
    predicted: Column = columns @ best
    return (first, second, third), predicted


def _distances(units: Column, y: Column, predicted: Column) -> dict[str, Any]:
    """The error and the residuals of a fit."""
    off = (y - predicted) / np.maximum(predicted, 1e-12)
    residuals = tuple((float(one), round(float(share), 4)) for one, share in zip(units, off, strict=True))
    return {"error": float(np.abs(off).mean()), "residuals": residuals}


def _repeated(points: Sequence[Point]) -> tuple[Column, Column]:
    repeated: dict[float, list[float]] = {}
    for units, seconds in points:
        repeated.setdefault(units, []).append(seconds)
    values = [middle_mean(values) for values in repeated.values()]
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
