"""From scores to an order, by rules that do not depend on chance.

Higher first. Equal scores keep the order of the request. A score that is no number cannot be compared: it comes last,
whatever the model meant, and is reported as null.
"""

import math
from collections.abc import Sequence


def ranked(scores: Sequence[float], top_n: int | None = None) -> list[int]:
    """Positions in `scores`, best first; the first `top_n` of them, or all when there are not so many."""
    order = sorted(range(len(scores)), key=lambda index: (_is_nan(scores[index]), -_number(scores[index]), index))
    return order if top_n is None else order[:top_n]


def reported(score: float) -> float | None:
    """A score as JSON can carry it: infinities and NaN are null."""
    return score if math.isfinite(score) else None


def _is_nan(score: float) -> bool:
    return math.isnan(score)


def _number(score: float) -> float:
    return 0.0 if math.isnan(score) else score
