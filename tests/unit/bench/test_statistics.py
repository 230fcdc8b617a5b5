"""Summing up, intervals, and runs that may not be summed up."""

import random

import pytest

from chiasm.bench.statistics.distribution import distribution
from chiasm.bench.statistics.intervals import bootstrap
from chiasm.bench.statistics.stability import stability


def test_a_distribution_skips_what_has_no_value():
    found = distribution([0.1, None, 0.2, 0.3, None])
    assert (found.count, found.mean_ms, found.p50_ms, found.max_ms) == (3, pytest.approx(200), pytest.approx(200), 300)
    assert found.p90_ms == pytest.approx(280)
    assert distribution([None]) is None


def test_intervals_cover_the_mean_about_as_often_as_they_say():
    rng = random.Random(0)
    covered = 0
    for number in range(100):
        found = bootstrap([rng.gauss(5, 1) for _ in range(30)], seed=number)
        assert found.low <= found.value <= found.high
        covered += found.low <= 5 <= found.high
    assert 86 <= covered <= 100


def test_an_interval_of_one_run_is_that_run():
    found = bootstrap([3.0])
    assert (found.low, found.value, found.high, found.count) == (3, 3, 3, 1)


def _queue(rate_per_s, service_s, count, seed):
    """First-token latencies of a server that takes one request at a time."""
    rng, at, free, starts, latencies = random.Random(seed), 0.0, 0.0, [], []
    for _ in range(count):
        at += rng.expovariate(rate_per_s)
        free = max(free, at) + service_s
        starts.append(at)
        latencies.append(free - at)
    return starts, latencies


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("count", "overload_per_s"), [(100, 18), (1000, 12)])
def test_an_overload_is_found_and_a_load_that_fits_is_not(seed, count, overload_per_s):
    assert not stability(*_queue(overload_per_s, 0.1, count, seed)).is_stable
    assert stability(*_queue(5, 0.1, count, seed)).is_stable


def test_one_stall_is_no_overload():
    starts = [i / 10 for i in range(200)]
    latencies = [0.1 + max(0.0, 2 - (start - 10)) * (start >= 10) for start in starts]
    latencies = [latency if start < 12 else 0.1 for start, latency in zip(starts, latencies, strict=True)]
    assert max(latencies) == pytest.approx(2.1)
    assert stability(starts, latencies).is_stable


def test_growth_is_told_in_multiples_of_the_first_level():
    starts = [float(i) for i in range(101)]
    found = stability(starts, [1 + 0.03 * start for start in starts])
    assert not found.is_stable
    assert found.growth == pytest.approx(3 / 1.48, rel=0.05)
    assert found.z > 10


def test_few_or_equal_values_show_nothing():
    assert stability([0, 1, 2], [1, 50, 900]).is_stable
    assert stability([float(i) for i in range(50)], [0.2] * 50).is_stable
    assert stability([0.0] * 50, [0.2] * 50).is_stable
