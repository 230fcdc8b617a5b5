"""How a ratio is written down: with its interval, and what that says of a target."""

from collections.abc import Mapping


def spread(ratio: Mapping[str, float]) -> str:
    """Its median and its 95 % interval."""
    return f"{ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"


def judged(ratio: Mapping[str, float], target: float | None, *, is_most: bool = False) -> str:
    """A ratio and its verdict: it should be at least the target, or at most. None: there is no target."""
    if target is None:
        return spread(ratio)
    sign, worst = (-1.0, ratio["high"]) if is_most else (1.0, ratio["low"])
    verdict = "met" if sign * worst >= sign * target else f"met by the median; the interval reaches {worst:.2f}"
    if sign * ratio["median"] < sign * target:
        verdict = "**missed**"
    return f"{spread(ratio)}, target {target:g} {verdict}"
