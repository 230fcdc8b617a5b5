"""Counters and histograms in plain lists, shown to Prometheus when it asks: every request counts a dozen times.

The client library's own take a lock and several calls for each. These belong to one event loop.
"""

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

Labels = tuple[str, ...]


class Counted(Collector):
    """A counter. One without labels is there, as 0, from the start."""

    def __init__(self, name: str, meaning: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self._meaning = meaning
        self._labels = labels
        self._created_unix_s = time.time()
        self.counts: dict[Labels, float] = {} if labels else {(): 0}

    def add(self, count: float, *labels: str) -> None:
        """Count more, which must not be negative."""
        self.counts[labels] = self.counts.get(labels, 0) + count

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        family = CounterMetricFamily(self.name, self._meaning, labels=self._labels)
        for labels, count in self.counts.items():
            family.add_metric(labels, count, created=self._created_unix_s)
        yield family


class Timed(Collector):
    """A histogram of seconds."""

    def __init__(self, name: str, meaning: str, labels: Sequence[str], bounds_s: Sequence[float]) -> None:
        """`bounds_s` are the upper bounds of the buckets, ascending; what is above the last one counts, too."""
        self._name = name
        self._meaning = meaning
        self._labels = labels
        self._bounds_s = bounds_s
        self._created_unix_s = time.time()
        self._bounds = [*(str(float(bound_s)) for bound_s in bounds_s), "+Inf"]
        self._rows: dict[Labels, _Row] = {}

    def observe(self, seconds: float, *labels: str) -> None:
        """Count one."""
        row = self._rows.get(labels)
        if row is None:
            row = self._rows[labels] = _Row(len(self._bounds))
        row.counts[bisect_left(self._bounds_s, seconds)] += 1
        row.sum_s += seconds

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        family = HistogramMetricFamily(self._name, self._meaning, labels=self._labels)
        for labels, row in self._rows.items():
            family.add_metric(labels, list(zip(self._bounds, accumulate(row.counts), strict=True)), row.sum_s)
            named = dict(zip(self._labels, labels, strict=True))
            family.add_sample(f"{self._name}_created", named, self._created_unix_s)
        yield family


class _Row:
    """What was observed under the same labels."""

    __slots__ = ("counts", "sum_s")

    def __init__(self, num_buckets: int) -> None:
        self.counts = [0] * num_buckets
        self.sum_s = 0.0
