"""A cost that is a fixed part and a part per unit, learned as it is seen."""

import msgspec

_FORGET = 0.97
"""Weight that an observation keeps when the next one comes: about thirty of them count."""
_PRIOR_WEIGHT = 0.05


class Coefficients(msgspec.Struct, frozen=True):
    """`fixed_s` seconds, and `per_unit_s` for each unit."""

    fixed_s: float
    per_unit_s: float

    def at(self, units: float) -> float:
        """Predicted seconds."""
        return self.fixed_s + self.per_unit_s * units


class Line:
    """Least squares with forgetting. A few parts of one observation hold on to the prior, so that it is never singular.

    The prior is seen at zero and at `usual_units`; nothing is ever predicted to cost less than nothing.
    """

    def __init__(self, prior: Coefficients, usual_units: float, num_seen: float = 0.0) -> None:
        """Start from a prior, which counts as so many observations that are forgotten as all others."""
        self._anchors = [(0.0, prior.at(0.0)), (usual_units, prior.at(usual_units))]
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        for units, seconds in self._anchors:
            self._add(units, seconds, num_seen / len(self._anchors))
        self._found: Coefficients | None = prior

    def see(self, units: float, seconds: float) -> None:
        """Take an observation."""
        self._found = None
        self._weight *= _FORGET
        self._x *= _FORGET
        self._y *= _FORGET
        self._xx *= _FORGET
        self._xy *= _FORGET
        self._add(units, seconds, 1.0)

    def coefficients(self) -> Coefficients:
        """The line as of now."""
        if self._found is None:
            self._found = self._fitted()
        return self._found

    def _add(self, units: float, seconds: float, weight: float) -> None:
        self._weight += weight
        self._x += weight * units
        self._y += weight * seconds
        self._xx += weight * units * units
        self._xy += weight * units * seconds

    def _fitted(self) -> Coefficients:
        weight, x, y, xx, xy = self._weight, self._x, self._y, self._xx, self._xy
        for units, seconds in self._anchors:
            weight += _PRIOR_WEIGHT
            x += _PRIOR_WEIGHT * units
            y += _PRIOR_WEIGHT * seconds
            xx += _PRIOR_WEIGHT * units * units
            xy += _PRIOR_WEIGHT * units * seconds
        slope = (weight * xy - x * y) / (weight * xx - x * x)
        fixed = (y - slope * x) / weight
        if slope < 0:
            return Coefficients(y / weight, 0.0)
        return Coefficients(fixed, slope) if fixed >= 0 else Coefficients(0.0, xy / xx)
