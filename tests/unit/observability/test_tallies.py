"""What is counted in plain lists reads as what the client library's own counters and histograms would say."""

import re

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from chiasm.observability.tallies import Counted, Timed

BOUNDS_S = (0.005, 0.01, 1, 120)


def text(*collectors):
    """Samples without the times at which counting began."""
    registry = CollectorRegistry()
    for one in collectors:
        registry.register(one)
    lines = generate_latest(registry).decode().splitlines()
    return [line.rpartition(" ")[0] if re.match(r"\w+_created\b", line) else line for line in lines]


@pytest.mark.parametrize("seconds", [(), (0.0,), (0.005,), (0.0051, 0.2), (-1.0, 1.0, 119.0, 120.0, 121.0)])
def test_a_histogram_has_the_same_samples(seconds):
    theirs = Histogram("x_seconds", "Times.", ["stage", "kind"], registry=None, buckets=BOUNDS_S)
    ours = Timed("x_seconds", "Times.", ["stage", "kind"], BOUNDS_S)
    for index, one in enumerate(seconds):
        labels = ("fetch", 'a "b"') if index % 2 else ("check", "")
        theirs.labels(*labels).observe(one)
        ours.observe(one, *labels)
    assert text(ours) == text(theirs)


def test_a_counter_has_the_same_samples():
    theirs = Counter("y", "Things.", ["kind"], registry=None)
    ours = Counted("y", "Things.", ["kind"])
    assert text(ours) == text(theirs)
    for count, kind in ((1, "a"), (2.5, "b"), (3, "a"), (0, "c")):
        theirs.labels(kind).inc(count)
        ours.add(count, kind)
    assert text(ours) == text(theirs)
    assert ours.counts == {("a",): 4, ("b",): 2.5, ("c",): 0}


def test_a_counter_without_labels_is_there_from_the_start():
    theirs, ours = Counter("z", "Things.", registry=None), Counted("z", "Things.")
    assert text(ours) == text(theirs)
    theirs.inc(7)
    ours.add(7)
    assert text(ours) == text(theirs)
