"""Limits in virtual time: what is refused, until when, and what stays used."""

import msgspec
import pytest
from msgspec.structs import replace

from chiasm.errors import RateLimitedError
from chiasm.tenancy.limits import Budget, Limits, Meter


def refused(meter, now_s):
    with pytest.raises(RateLimitedError) as caught:
        meter.admit(now_s)
    return caught.value


def test_requests_come_at_the_rate_and_ten_seconds_gather():
    meter = Meter("t", Limits(max_requests_per_minute=30), 0.0)
    for _ in range(5):
        meter.admit(0.0)
    error = refused(meter, 0.0)
    assert error.retry_after_s == 2
    assert "max_requests_per_minute = 30" in error.message
    refused(meter, 1.9)
    meter.admit(2.1)
    for _ in range(5):
        meter.admit(1000.0)
    refused(meter, 1000.0)
    assert meter.num_requests == 11
    assert meter.num_refused == {"max_requests_per_minute": 3}


@pytest.mark.parametrize("kind", ["tokens", "media_bytes", "visual_tokens"])
def test_what_is_known_afterwards_is_owed(kind):
    meter = Meter("t", Limits(**{f"max_{kind}_per_minute": 60}), 0.0)
    meter.admit(0.0)
    meter.use(0.0, **{kind: 100})
    assert refused(meter, 0.0).retry_after_s == 60
    refused(meter, 90.5)
    meter.admit(91.5)
    meter.use(91.5, **{other: 1000 for other in ("tokens", "media_bytes", "visual_tokens") if other != kind})
    meter.admit(91.5)


def test_a_retry_is_never_told_to_come_later_than_a_minute():
    meter = Meter("t", Limits(max_tokens_per_minute=1), 0.0)
    meter.use(0.0, tokens=10_000)
    assert refused(meter, 0.0).retry_after_s == 60


def test_open_requests_are_bounded():
    meter = Meter("t", Limits(max_concurrent_requests=2), 0.0)
    meter.share.num_open = 2
    assert "max_concurrent_requests" in refused(meter, 0.0).message
    meter.share.num_open = 1
    meter.admit(0.0)


def test_new_limits_keep_what_is_used_where_they_stay():
    limits = Limits(max_requests_per_minute=12, max_tokens_per_minute=10)
    meter = Meter("t", limits, 0.0)
    meter.admit(0.0)
    meter.admit(0.0)
    meter.limit(replace(limits, max_tokens_per_minute=20, weight=3.0), 0.0)
    assert meter.share.weight == 3.0
    refused(meter, 0.0)
    meter.limit(Limits(), 0.0)
    meter.admit(0.0)


def test_a_small_budget_allows_one_at_a_time():
    budget = Budget("b", 0.5, 0.0)
    assert budget.wait_s(0.0) == 0
    budget.take(1, 0.0)
    assert budget.wait_s(0.0) == pytest.approx(120)


def test_a_tenant_has_the_defaults_for_what_it_does_not_set():
    defaults = Limits(weight=9, max_tokens_per_minute=5, max_concurrent_requests=1)
    assert Limits(max_tokens_per_minute=7).over(defaults) == Limits(max_tokens_per_minute=7, max_concurrent_requests=1)


@pytest.mark.parametrize("amount", [float("inf"), float("nan"), 0, -1, 1e16])
def test_what_cannot_be_counted_is_no_limit_of_a_file(amount):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"max_tokens_per_minute": amount}, Limits)
