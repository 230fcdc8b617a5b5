import numpy as np
import pytest

from benchmarks.simulator_reference import break_even, judged, kv_shares, load_reference, of_role, predicted, verdicts
from benchmarks.simulator_reference_model import START, Model, as_log, fit

REFERENCE = load_reference()


class Fixed:
    """A model with colocated answers that take these shares of the others' time."""

    def __init__(self, shares):
        self.shares = dict(zip((128, 256, 512, 1024, 2048), shares, strict=True))

    def e2el_s(self, topology, cell):
        return self.shares[cell[2]] if topology == "colocated" else 1.0


def test_no_number_is_both_fitted_and_held_out():
    ids = [one["id"] for one in REFERENCE["records"]]
    assert len(ids) == len(set(ids))
    assert len(of_role(REFERENCE, "held_out")) == 12
    assert len(of_role(REFERENCE, "fitted")) > len(REFERENCE["parameters"]) == len(START)


def test_every_number_has_a_role_and_a_source():
    assert {one["role"] for one in REFERENCE["records"]} == set(REFERENCE["roles"])
    assert {one["source"] for one in REFERENCE["records"]} <= set(REFERENCE["sources"])


def test_every_held_out_number_is_predicted_by_simulation():
    assumptions = REFERENCE["assumptions"] | {"num_requests_per_device": 3}
    rows = predicted(of_role(REFERENCE, "held_out"), Model(START, assumptions, 0.2))
    assert all(np.isfinite(one["predicted"]) and one["predicted"] < 100.0 for one in rows)


def test_an_unloaded_request_takes_the_sum_of_its_stages():
    assumptions = REFERENCE["assumptions"] | {"rate_per_device": 0.01, "num_requests_per_device": 2}
    model, cell = Model(START, assumptions, 0.2), (10, 256, 2)
    prefill_ms = START["prompt_ms"] + 2561 * (210.9 - 127.8) / 2304
    media_ms = 10 * START["media_image_ms"] + 2560 * START["media_token_ms"]
    whole_ms = START["in_process"] * media_ms + 27.3 + prefill_ms
    assert 1e3 * model.ttft_s("aggregated", cell) == pytest.approx(whole_ms, rel=1e-6)
    apart_ms = START["apart"] * (media_ms + 27.3) + START["hop_ms"] + prefill_ms
    assert 1e3 * model.ttft_s("disaggregated", cell) == pytest.approx(apart_ms, rel=1e-6)
    later_ms = 1e3 * (model.e2el_s("disaggregated", cell) - model.ttft_s("disaggregated", cell))
    assert later_ms == pytest.approx(START["step_ms"], rel=1e-6)


def test_a_fit_finds_what_made_its_targets():
    truth = {"a": 3.0, "b": 0.2}
    x = np.array([1.0, 2.0, 5.0])
    found = fit(lambda p: p["a"] + p["b"] * x - (truth["a"] + truth["b"] * x), {"a": 1.0, "b": 1.0}, rounds=30)
    assert found == pytest.approx(truth, rel=1e-3)


def test_gains_are_fitted_as_what_they_leave():
    assert as_log({"unit": "pct"}, 75.0) == pytest.approx(np.log(0.25))
    assert as_log({"unit": "ms"}, 880.0) == pytest.approx(np.log(880.0))


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((0.9, 0.95, 1.01, 1.02, 1.03), (256.0, 512.0)),
        ((1.1, 1.1, 1.1, 1.1, 1.1), (128.0, 128.0)),
        ((0.9, 0.9, 0.9, 0.9, 0.9), None),
    ],
)
def test_the_break_even_lies_between_two_lengths(shares, expected):
    assert break_even(Fixed(shares)) == expected


def test_held_out_gains_are_judged():
    rows = [{"id": "a", "published": 10.0, "predicted": 9.0}, {"id": "b", "published": -1.0, "predicted": 1.0}]
    found = judged(rows, REFERENCE["tolerances"])
    assert (found["mean_points"], found["max_points"], found["wrong_signs"], found["within"]) == (1.5, 2.0, [], True)
    rows.append({"id": "c", "published": 4.0, "predicted": -1.0})
    found = judged(rows, REFERENCE["tolerances"])
    assert (found["wrong_signs"], found["within"]) == (["c"], False)


def test_on_small_memory_only_the_largest_model_loses_its_room():
    rejected = {
        (row["model"], row["memory_gb"]) for row in kv_shares(REFERENCE["assumptions"]) if row["colocation_rejected"]
    }
    assert rejected == {("Qwen3.5-27B", 80)}


def _found(predicted_s, lengths):
    row = {"unit": "s", "published": 1.0, "predicted": predicted_s}
    variants = [{"fitted": [row], "held_out": [row], "verdict": {}, "break_even": one} for one in lengths]
    mixed = {"interval_pct": None, "published_pct": 42.2, "within": False}
    return {"variants": variants, "mixed": mixed, "kv": kv_shares(REFERENCE["assumptions"])}


def test_the_break_even_interval_is_that_of_all_variants():
    found = verdicts(_found(1.04, [(128.0, 256.0), (1024.0, 2048.0), None]), REFERENCE)
    assert (found["fitted"]["within"], found["held_out_ratio_error_pct"]) == (True, [4.0])
    assert found["break_even"] == {"interval": [128.0, None], "published": [256, 512], "within": True}
    assert found["fit_step"] == {"rejected": ["Qwen3.5-27B"], "within": True}


def test_a_break_even_that_is_elsewhere_and_a_bad_fit_are_said():
    found = verdicts(_found(1.2, [(1024.0, 2048.0)]), REFERENCE)
    assert (found["fitted"]["within"], found["break_even"]["within"]) == (False, False)
