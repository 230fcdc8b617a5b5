"""Comparing numbers that should be the same: differences, rank agreement, the items that differ most, a verdict."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from chiasm.pooling.ranking import ranked

Array = NDArray[np.float32]
_NUM_WORST = 3


class WorstItem(msgspec.Struct, frozen=True):
    """An item by its position, and its largest difference."""

    item: int
    difference: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One check. `rank_agreement` is the share of pairs of items in the same order, where items can be ranked."""

    name: str
    is_passed: bool
    tolerance: float
    max_difference: float
    mean_difference: float
    num_items: int
    rank_agreement: float | None = None
    worst: tuple[WorstItem, ...] = ()
    note: str = ""


class ParityReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared with what. `is_passed` is the verdict of all checks."""

    model: str
    task: str
    dtype: str
    is_passed: bool
    comparisons: tuple[Comparison, ...]


def compare(name: str, found: Sequence[Array], wanted: Sequence[Array], tolerance: float) -> Comparison:
    """Compare item by item. Shapes that differ, and numbers that are none, are infinitely different."""
    differences = [_differences(a, b) for a, b in zip(found, wanted, strict=True)]
    largest = [float(one.max(initial=0.0)) for one in differences]
    order = sorted(range(len(largest)), key=lambda index: -largest[index])
    worst = tuple(WorstItem(index, largest[index]) for index in order[:_NUM_WORST] if largest[index] > 0)
    flat = np.concatenate([one.ravel() for one in differences]) if differences else np.zeros(1)
    most = max(largest, default=0.0)
    return Comparison(
        name=name,
        is_passed=most <= tolerance,
        tolerance=tolerance,
        max_difference=most,
        mean_difference=float(flat.mean()) if flat.size else 0.0,
        num_items=len(found),
        rank_agreement=_rank_agreement(found, wanted),
        worst=worst,
    )


def equal(name: str, found: Sequence[object], wanted: Sequence[object], note: str = "") -> Comparison:
    """Compare what is the same or is not, such as token ids and labels."""
    differ = [index for index, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b]
    is_passed = not differ and len(found) == len(wanted)
    return Comparison(
        name=name,
        is_passed=is_passed,
        tolerance=0.0,
        max_difference=0.0 if is_passed else 1.0,
        mean_difference=len(differ) / max(1, len(wanted)),
        num_items=len(wanted),
        worst=tuple(WorstItem(index, 1.0) for index in differ[:_NUM_WORST]),
        note=note,
    )


def decided(name: str, found: Sequence[Array], wanted: Sequence[Array], threshold: float | None) -> Comparison:
    """Compare what follows from the numbers: which classes reach the threshold, or without one, which is largest.

    Of token classifiers one decision per token. Numbers within a tolerance may still decide otherwise.
    """
    return equal(name, [_decision(one, threshold) for one in found], [_decision(one, threshold) for one in wanted])


def _decision(values: Array, threshold: float | None) -> object:
    chosen = values.argmax(axis=-1) if threshold is None else values >= threshold
    return chosen.tolist()


def _differences(found: Array, wanted: Array) -> NDArray[np.float64]:
    if found.shape != wanted.shape:
        return np.array([np.inf])
    difference = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
    return np.where(np.isnan(difference), np.inf, difference)


def _rank_agreement(found: Sequence[Array], wanted: Sequence[Array]) -> float | None:
    """For single scores: the share of pairs of items that are in the same order; 1 is the same ranking."""
    if len(found) < 2 or any(one.size != 1 for one in (*found, *wanted)):
        return None
    places = _places(found), _places(wanted)
    pairs = [(a, b) for a in range(len(found)) for b in range(a)]
    same = sum((places[0][a] < places[0][b]) == (places[1][a] < places[1][b]) for a, b in pairs)
    return same / len(pairs)


def _places(scores: Sequence[Array]) -> dict[int, int]:
    return {index: place for place, index in enumerate(ranked([float(one.ravel()[0]) for one in scores]))}
