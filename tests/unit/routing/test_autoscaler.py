"""How many encoders are wanted: a pure object, asked again and again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chiasm.routing.autoscaler import Autoscaler, ScalingRule, Signal

RULE = ScalingRule(min_encoders=1, max_encoders=20, queue_s=0.5, calm_s=300.0, fall_period_s=60.0)


def signal(num, queue_s, ready=None, misses=0.0):
    return Signal(num_encoders=num, num_ready=num if ready is None else ready, queue_s=queue_s, slo_misses=misses)


def wanted(rule, *signals, every_s=15.0):
    scaler = Autoscaler(rule)
    return [scaler.decide(number * every_s, one).num_wanted for number, one in enumerate(signals)]


@pytest.mark.parametrize(
    ("num_now", "queue_s", "expected"), [(4, 0.5, 4), (4, 0.54, 4), (4, 0.46, 4), (4, 1.0, 8), (4, 0.6, 5), (1, 9.0, 5)]
)
def test_as_many_come_as_bring_the_wait_to_its_target_but_not_all_at_once(num_now, queue_s, expected):
    assert wanted(RULE, signal(num_now, queue_s)) == [expected]


def test_those_that_start_are_counted_and_not_asked_for_again():
    assert wanted(RULE, signal(2, 1.0), signal(4, 1.0, ready=2), signal(4, 1.2, ready=2)) == [4, 4, 5]


def test_nothing_is_known_while_none_is_ready():
    assert wanted(RULE, signal(3, 0.0, ready=0), signal(3, 0.0, ready=0)) == [3, 3]


def test_late_requests_bring_one_more_only_where_pictures_wait():
    assert wanted(RULE, signal(2, 0.5, misses=7)) == [3]
    assert wanted(RULE, signal(2, 0.0, misses=7)) == [1]  # waiting for something else than encoders
    assert wanted(RULE, signal(2, 0.5, ready=1, misses=7)) == [2]  # one is on its way


def test_never_fewer_or_more_than_may_be_nor_than_may_be_paid():
    dear = ScalingRule(min_encoders=2, max_encoders=20, hour_cost=3.0, max_hour_cost=10.0)
    assert dear.num_most == 3
    assert wanted(dear, signal(2, 99.0)) == [3]
    assert ScalingRule(min_encoders=2, max_encoders=20, hour_cost=3.0, max_hour_cost=1.0).num_most == 2
    assert ScalingRule(min_encoders=2, max_encoders=20, hour_cost=3.0).num_most == 20


def test_one_goes_when_it_was_calm_for_long_enough_and_then_the_next():
    scaler, num, times = Autoscaler(RULE), 3, []
    scaler.decide(0.0, signal(1, 1.5))
    for now_s in range(15, 600, 15):
        change = scaler.decide(float(now_s), signal(num, 0.0)).num_wanted - num
        num += change
        if change:
            times.append(now_s)
    assert times == [315, 375]
    assert num == 1


def test_a_burst_brings_encoders_within_two_decisions_and_they_stay_until_it_is_over():
    quiet, burst = signal(1, 0.0), signal(1, 4.0)
    assert wanted(RULE, quiet, burst, signal(5, 4.0, ready=1), signal(8, 1.0)) == [1, 5, 8, 16]


def test_a_fall_that_was_wrong_is_remembered():
    scaler = Autoscaler(ScalingRule(min_encoders=1, max_encoders=4, calm_s=60.0, fall_period_s=15.0))
    num, now_s, gaps, rose_s = 2, 0.0, [], 0.0
    while len(gaps) < 5:
        now_s += 15.0
        decision = scaler.decide(now_s, signal(num, 0.0 if num == 2 else 0.9))
        if decision.num_wanted < num:
            gaps.append(now_s - rose_s)
        elif decision.num_wanted > num:
            rose_s = now_s
        num = decision.num_wanted
    assert gaps[1:] == sorted(gaps[1:])
    assert gaps[-1] >= 3 * gaps[1]
    assert scaler.calm_s <= 8 * 60.0


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 30), st.floats(0, 1e3), st.floats(0.1, 900.0)), max_size=60),
    st.integers(1, 5),
    st.integers(1, 40),
)
def test_any_signal_keeps_the_number_within_its_limits(steps, least, most):
    rule = ScalingRule(min_encoders=least, max_encoders=most, calm_s=120.0)
    scaler, num, now_s = Autoscaler(rule), least, 0.0
    for queue_s, ready, misses, passed_s in steps:
        now_s += passed_s
        decision = scaler.decide(now_s, signal(num, queue_s, min(ready, num), misses))
        assert least <= decision.num_wanted <= rule.num_most
        assert decision.num_wanted >= num - 1
        assert decision.reason
        num = decision.num_wanted
