"""Results about operating are shown with their verdicts."""

import pytest

from benchmarks.render_operations import operations_section

RATIO = {"median": 1.05, "low": 1.0, "high": 1.08}


def noisy(p95):
    options = {"quiet_per_s": 3.0, "limit_per_s": 6.0, "rounds": 9, "seconds": 20.0}
    return {"options": options, "ratios": {"flood / at its limit": {"p50_ms": RATIO, "p95_ms": p95}}}


@pytest.mark.parametrize(("high", "verdict"), [(1.08, "target 1.1 met"), (1.2, "the interval reaches 1.20")])
def test_a_flood_is_held_against_the_same_tenant_at_its_limit(high, verdict):
    assert verdict in operations_section(noisy(RATIO | {"high": high}), "")


def test_what_the_client_of_a_flood_costs_is_told_apart():
    result = noisy(RATIO | {"median": 1.2, "high": 1.4})
    result["options"]["settle_s"] = 5.0
    assert "Refused elsewhere" not in operations_section(result, "")
    result["ratios"] |= {
        f"{one} / {other}": {"p50_ms": RATIO, "p95_ms": RATIO}
        for one, other in (("flood", "refused elsewhere"), ("refused elsewhere", "at its limit"))
    }
    page = operations_section(result, "")
    assert "| flood | at its limit | 1.05 (1.00-1.08) | 1.20 (1.00-1.40), target 1.1 **missed** |" in page
    assert "| flood | refused elsewhere | 1.05 (1.00-1.08) | 1.05 (1.00-1.08), target 1.1 met |" in page
    assert "| refused elsewhere | at its limit | 1.05 (1.00-1.08) | 1.05 (1.00-1.08) |" in page
    assert "It begins 5 s after the other" in page


def test_refusals_have_their_cost():
    one = {"delay_s": 1.0, "connections": 64, "refused_per_s": 73.4, "cpu_us": 81.2, "cpu_share": 0.006}
    assert "| 1 | 64 | 73 | 81 us | 1% |" in operations_section({"refusals": [one]}, "")


def told(low, high):
    one = {"auc": (low + high) / 2, "low": low, "high": high, "median_ms": 9.0}
    return {"options": {"scope": "tenant"}, "rounds": [{}], "told": {"other": one, "own": one}}


@pytest.mark.parametrize(("low", "verdict"), [(0.45, "| tells nothing |"), (0.52, "**tells something**")])
def test_times_tell_when_the_interval_leaves_out_a_half(low, verdict):
    page = operations_section(told(low, 0.6), "")
    assert verdict in page
    assert page.count("tells") == 2, "the tenant itself, and the line above the table"


def test_adapters_are_compared_with_the_base():
    figure = {"median": 250.0, "ratio": RATIO}
    setting = {"model": "120m", "rank": 16, "targets": "all", "threads": 2, "slots": 4}
    cell = {"tokens_per_s": figure, "cpu_s_per_token": figure, "loads": 3}
    page = operations_section({"settings": setting, "summary": {"16 adapters": cell}}, "")
    assert "| 16 adapters | 250 | 1.05 (1.00-1.08) | 1.05 (1.00-1.08) | 3 |" in page


@pytest.mark.parametrize(("wrong", "verdict"), [([], "as it must be"), (["answers are wrong"], "answers are wrong")])
def test_chaos_names_what_is_wrong_and_what_never_recovered(wrong, verdict):
    events = [{"at_s": 20.0, "what": "killed", "recovery_s": 0.5}, {"at_s": 40.0, "what": "cut", "recovery_s": None}]
    result = {"requests": 2000, "ended": 2000, "outcomes": {"finished": 2000}, "wrong_answers": 0, "availability": 1.0}
    page = operations_section(result | {"events": events, "wrong": wrong}, "")
    assert verdict in page
    assert "| cut at 40 s | not in the run |" in page
    assert "The longest took 0.50 s." in page


@pytest.mark.parametrize(("failed", "verdict"), [(0, "target 0 met"), (2, "**missed**")])
def test_a_rolling_restart_wants_no_failure(failed, verdict):
    step = {"what": "store", "took_s": 1.0, "answers": 40, "failures": failed}
    assert verdict in operations_section({"requests": 5000, "failed": failed, "steps": [step]}, "")
