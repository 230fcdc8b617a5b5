"""A backlog keeps its sum; it has to stay what adding everything up would give."""

import random

import pytest

from chiasm.routing.member import Backlog


class Clock:
    """Time that the test sets."""

    time_s = 0.0

    def now_s(self):
        return self.time_s

    def unix_s(self):
        return self.time_s


def test_the_kept_sum_is_that_of_all_open_work():
    clock, rng, open_works = Clock(), random.Random(1), []
    backlog, until_s = Backlog(clock), 0.0
    for _ in range(3000):
        clock.time_s += rng.expovariate(5.0)
        if open_works and rng.random() < 0.5:
            seconds, work = open_works.pop(rng.randrange(len(open_works)))
            work.__exit__(None, None, None)
            until_s = min(until_s, clock.time_s + sum(one for one, _ in open_works))
        else:
            seconds = rng.expovariate(3.0)
            work = backlog.work(seconds)
            work.__enter__()
            open_works.append((seconds, work))
            until_s = max(until_s, clock.time_s) + seconds
        expected_s = max(until_s - clock.time_s, 0.25 * sum(one for one, _ in open_works))
        assert backlog.wait_s() == pytest.approx(expected_s, abs=1e-9)
        assert len(backlog) == len(open_works)


def test_nothing_is_left_of_work_that_is_over():
    backlog = Backlog(Clock())
    for seconds in (0.1, 0.2, 0.3, 1e9):
        with backlog.work(seconds):
            assert backlog.wait_s() >= seconds
    assert backlog.wait_s() == 0.0


def test_work_that_fails_is_over_too():
    backlog = Backlog(Clock())
    with pytest.raises(ValueError, match="no"), backlog.work(1.0):
        raise ValueError("no")
    assert (len(backlog), backlog.wait_s()) == (0, 0.0)
