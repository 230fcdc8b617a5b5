"""What has changed since an earlier report, as far as the values of single requests can tell it from chance."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from chiasm.errors import InvalidSettingError
from chiasm.reporting.content import FORMAT, Cell, Report

Array = NDArray[np.float64]
Verdict = Literal["same", "regression", "improvement"]

_WHAT = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2el_ms": "E2EL"}
_LEVEL = 0.05
_MIN_VALUES = 6
_MORE_FAILURES = 2.0
"""So many times the baseline's share of failed requests is worse whatever the latencies of the others are."""
_NUM_RESAMPLES = 2000
_SEED = 0


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One latency of one cell. `change` is that of the median as a share, `low` and `high` its 95 % interval."""

    cell: str
    what: str
    before_ms: float
    now_ms: float
    change: float
    low: float
    high: float
    p: float
    verdict: Verdict


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All that both reports measured. `findings` are worse, too, and need no statistics."""

    changes: tuple[Change, ...]
    findings: tuple[str, ...]
    method: str

    @property
    def is_worse(self) -> bool:
        """Whether somebody should look."""
        return bool(self.findings) or any(one.verdict == "regression" for one in self.changes)

    @property
    def verdict(self) -> str:
        """In one line."""
        worse = sum(one.verdict == "regression" for one in self.changes)
        better = sum(one.verdict == "improvement" for one in self.changes)
        told = f"{worse} of {len(self.changes)} latencies are worse, {better} better"
        return told + (f"; {len(self.findings)} other findings." if self.findings else ".")


def read_report(path: Path) -> Report:
    """Read what `chiasm report --output x.json` wrote. Raises `InvalidSettingError`."""
    try:
        report = msgspec.json.decode(path.read_bytes(), type=Report)
    except OSError as error:
        raise InvalidSettingError(f"'{path.name}' cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidSettingError(
            f"'{path.name}' is no report of this version: {error}", hint="A baseline is the .json of an earlier report"
        ) from error
    if report.format != FORMAT:
        raise InvalidSettingError(f"'{path.name}' has format {report.format}, this version writes {FORMAT}")
    return report


def check_load(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """See that a baseline was made with the same load, as far as `now` tells. Raises `InvalidSettingError`."""
    differing = [name for name in now if before.get(name) != now[name]]
    if differing:
        raise InvalidSettingError(
            f"The baseline was made with another load: {', '.join(differing)}", hint="Use the same options for both"
        )


def _weights(report: Report) -> str:
    return " ".join(filter(None, (report.model.id, report.model.dtype, report.model.model_revision)))


def compare(before: Report, now: Report, tolerance: float) -> Comparison:
    """Compare cells that both have. A change of the median by less than `tolerance` is never one.

    Raises:
        InvalidSettingError: They measured different things.
    """
    check_load(before.load, now.load)
    pairs = list(_pairs(before, now))
    raw = [_changed(*pair) for pair in pairs]
    level = _LEVEL / max(1, len(raw))
    changes = tuple(msgspec.structs.replace(one, verdict=_verdict(one, level, tolerance)) for one in raw)
    method = (
        f"Changed: beyond {tolerance:.0%}, beyond chance by a Mann-Whitney test of single requests (at {_LEVEL:g} over "
        f"all {len(raw)} comparisons together), and with a 95 % interval on one side of zero. Requests side by "
        f"side are averaged in groups first."
    )
    if _weights(before) != _weights(now):
        method = f"Other weights: before {_weights(before)}, now {_weights(now)}. {method}"
    return Comparison(changes=changes, findings=tuple(_findings(before, now)), method=method)


def _pairs(before: Report, now: Report) -> Iterator[tuple[str, str, Array, Array]]:
    cells = {(one.key, one.concurrency): one for one in (*before.stages, *before.concurrency, *before.caches)}
    for cell in (*now.stages, *now.concurrency, *now.caches):
        old = cells.get((cell.key, cell.concurrency))
        for field, what in _WHAT.items() if old is not None else ():
            first, second = _values(old, field), _values(cell, field)
            if min(first.size, second.size) >= _MIN_VALUES:
                yield cell.key, what, first, second


def _values(cell: Cell | None, field: str) -> Array:
    """Values that are about independent: those of requests that ran side by side are averaged."""
    assert cell is not None, "the caller has looked"
    values = np.asarray(getattr(cell.samples, field), np.float64)
    if cell.concurrency == 1:
        return values
    whole = len(values) // cell.concurrency * cell.concurrency
    groups: Array = values[:whole].reshape(-1, cell.concurrency).mean(axis=1)
    return groups


def _changed(cell: str, what: str, before: Array, now: Array) -> Change:
    rng = np.random.default_rng(_SEED)
    ratios = _medians(now, rng) / np.maximum(_medians(before, rng), 1e-9)
    low, high = np.percentile(ratios, (2.5, 97.5))
    first, second = float(np.median(before)), float(np.median(now))
    return Change(
        cell=cell,
        what=what,
        before_ms=first,
        now_ms=second,
        change=second / max(first, 1e-9) - 1,
        low=float(low) - 1,
        high=float(high) - 1,
        p=mann_whitney(before, now),
        verdict="same",
    )


def _medians(values: Array, rng: np.random.Generator) -> Array:
    medians: Array = np.median(values[rng.integers(0, values.size, (_NUM_RESAMPLES, values.size))], axis=1)
    return medians


def _verdict(change: Change, level: float, tolerance: float) -> Verdict:
    if change.p >= level:
        return "same"
    if change.low > 0 and change.change > tolerance:
        return "regression"
    return "improvement" if change.high < 0 and change.change < -tolerance else "same"


def mann_whitney(first: Sequence[float] | Array, second: Sequence[float] | Array) -> float:
    """Two-sided p that both come from one distribution; normal approximation with ties, good from six values on."""
    n, m = len(first), len(second)
    together = np.concatenate([first, second])
    _, places, counts = np.unique(together, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2)[places]
    statistic = float(ranks[:n].sum()) - n * (n + 1) / 2
    ties = float((counts**3 - counts).sum()) / ((n + m) * (n + m - 1))
    spread = math.sqrt(max(n * m / 12 * (n + m + 1 - ties), 0.0))
    if spread == 0:
        return 1.0
    z = max(abs(statistic - n * m / 2) - 0.5, 0.0) / spread
    return math.erfc(z / math.sqrt(2))


def _failed(cell: Cell) -> float:
    """The share of its requests that did not finish."""
    return 1 - cell.num_finished / cell.num_requests if cell.num_requests else 0.0


def _findings(before: Report, now: Report) -> Iterator[str]:
    failed = {one.key: _failed(one) for one in (*before.stages, *before.concurrency, *before.caches)}
    for cell in (*now.stages, *now.concurrency, *now.caches):
        share = failed.get(cell.key)
        if share is not None and _failed(cell) > _MORE_FAILURES * share:
            num_failed = cell.num_requests - cell.num_finished
            earlier = f"{share:.0%}" if share else "none"
            yield f"{cell.key}: {num_failed} of {cell.num_requests} requests failed, before {earlier}"
    refused = {one.sent for one in before.refusals if one.code is not None}
    yield from (f"Not refused any more: {one.sent}" for one in now.refusals if one.code is None and one.sent in refused)
    guarded = {rule.about for rule in before.policy.rules if not rule.is_open}
    opened = [rule for rule in now.policy.rules if rule.is_open and rule.about in guarded]
    yield from (f"Open to anybody now: {rule.about} {rule.says}" for rule in opened)
