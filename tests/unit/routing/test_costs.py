"""Learning of stage costs, and the arithmetic of spans."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chiasm.observability.receipt import Span
from chiasm.routing.costs.arrivals import Arrivals
from chiasm.routing.costs.line import Coefficients, Line
from chiasm.routing.costs.model import PRIOR_ENCODE, CostModel, StageCosts
from chiasm.routing.costs.spans import busy_s, gaps

PRIOR = Coefficients(0.01, 0.001)


def test_before_anything_is_seen_the_prior_holds():
    line = Line(PRIOR, 100.0).coefficients()
    assert line.at(0) == pytest.approx(PRIOR.at(0))
    assert line.at(100) == pytest.approx(PRIOR.at(100))


def test_a_line_is_found():
    line = Line(PRIOR, 100.0)
    for step in range(200):
        line.see(50.0 + step % 7 * 30, 0.5 + 0.02 * (50.0 + step % 7 * 30))
    found = line.coefficients()
    assert found.fixed_s == pytest.approx(0.5, rel=0.1)
    assert found.per_unit_s == pytest.approx(0.02, rel=0.05)


def test_what_was_seen_long_ago_is_forgotten():
    line = Line(PRIOR, 100.0)
    for seconds in (5.0, 0.1):
        for _ in range(200):
            line.see(100.0, seconds)
    assert line.coefficients().at(100.0) < 0.12


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 100)), max_size=50))
def test_no_prediction_is_negative(seen):
    line = Line(PRIOR, 100.0)
    for units, seconds in seen:
        line.see(units, seconds)
    found = line.coefficients()
    assert min(found.fixed_s, found.per_unit_s) >= 0
    assert found.at(1e5) >= 0


def test_workers_differ_and_a_new_one_costs_what_the_fleet_does():
    model = CostModel()
    for _ in range(100):
        model.see_encode("slow", 2, 20_000, 4.0)
        model.see_encode("quick", 1, 10_000, 0.5)
    costs = model.costs()
    assert costs.encode_s("slow", 10_000) == pytest.approx(2.0, rel=0.1)
    assert costs.encode_s("quick", 10_000) == pytest.approx(0.5, rel=0.1)
    assert 0.5 < costs.encode_s("new", 10_000) < 2.0
    for index in range(300):
        model.see_encode(f"passing {index}", 1, 10_000, 0.5)
    assert len(model.costs().encode) == 256


def test_costs_handed_out_do_not_change():
    model = CostModel()
    before = model.costs()
    assert model.costs() is before
    model.see_encode("a", 1, 100, 9.0)
    assert before.encode_s("a", 100) == pytest.approx(PRIOR_ENCODE.at(100))
    assert model.costs().encode_s("a", 100) > 1.0


def test_averages_follow():
    model = CostModel()
    for _ in range(200):
        model.see_hop(0.5)
        model.see_take(0.25)
        model.see_output(100)
        model.see_step(4, 0.02)
        model.see_prefill("a", 100, 0.3)
        model.see_text(300, 100)
        model.see_picture(10_000, 50)
    costs = model.costs()
    assert costs.hop_s == pytest.approx(0.5, rel=0.01)
    assert costs.take_s == pytest.approx(0.25, rel=0.01)
    assert costs.output_tokens == pytest.approx(100, rel=0.01)
    assert costs.step.at(4) == pytest.approx(0.02, rel=0.05)
    assert costs.prefill_s("a", 100) == pytest.approx(0.3, rel=0.05)
    assert costs.num_tokens(300, [10_000, 10_000]) == pytest.approx(200, rel=0.05)


def test_a_rate_rises_with_arrivals_and_fades_without():
    arrivals = Arrivals()
    assert arrivals.per_s(100.0) == 0.0
    for index in range(400):
        arrivals.see(100.0 + index / 5)
    assert arrivals.per_s(180.0) == pytest.approx(5.0, rel=0.1)
    assert arrivals.per_s(280.0) < 0.01


def test_estimates_need_no_knowledge():
    costs = StageCosts()
    assert costs.num_tokens(400, [784 * 64]) == pytest.approx(108 + 64)


SPANS = [Span("encode", 1.0, 3.0), Span("encode", 2.0, 4.0), Span("prefill", 6.0, 7.0)]


def test_time_in_which_two_things_happen_counts_once():
    assert busy_s(SPANS, ("encode",)) == 3.0
    assert busy_s(SPANS, ("encode", "prefill")) == 4.0
    assert busy_s(SPANS, ("queue",)) == 0.0


def test_gaps_are_what_no_span_covers():
    found = [(span.start_s, span.end_s) for span in gaps(SPANS, 0.0, 8.0, "transfer")]
    assert found == [(0.0, 1.0), (4.0, 6.0), (7.0, 8.0)]
    assert [(s.start_s, s.end_s) for s in gaps(SPANS, 2.0, 5.0, "x")] == [(4.0, 5.0)]
    assert gaps(SPANS, 1.5, 3.5, "x") == []
    assert [(s.start_s, s.end_s) for s in gaps([], 1.0, 2.0, "x")] == [(1.0, 2.0)]
