"""Measured costs to start from: which files hold any, and what the first request does with them."""

import json

import pytest

from chiasm.errors import InvalidSettingError
from chiasm.routing.costs.line import Coefficients, Line
from chiasm.routing.costs.model import PRIOR_ENCODE, PRIOR_HOP_S, PRIOR_STEP, CostModel, StageCosts
from chiasm.routing.costs.prior import read_prior
from tests.unit.routing.fleets import outcome_of, serving
from tests.unit.routing.scripted import ask, picture
from tests.unit.routing.virtual_time import run

MEASURED = {
    "source": "test",
    "request": {"fixed_s": 0.001},
    "media": {"fixed_s": 0.001, "per_unit_s": 1e-8},
    "encode": {"fixed_s": 0.002, "per_unit_s": 1e-4},
    "prefill": {"fixed_s": 0.003, "per_unit_s": 2e-5},
    "step": {"fixed_s": 0.004, "per_unit_s": 0.0005},
    "transfer": {"fixed_s": 0.006, "per_unit_s": 1e-6},
    "prefill_quadratic_s": 1e-8,
    "visual_tokens": {"fixed_s": 4.0, "per_unit_s": 0.001},
    "evidence": {},
}
DEAR = StageCosts(encode_any=Coefficients(0.2, 0.0))
CHEAP_BUT_FAR = StageCosts(encode_any=Coefficients(0.001, 0.0), hop_s=0.05)


def written(tmp_path, content):
    path = tmp_path / "costs.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return str(path)


def test_a_profile_is_read_in_the_units_of_routing(tmp_path):
    costs = read_prior(written(tmp_path, MEASURED))
    assert costs.encode_s("any", 100_000) == pytest.approx(0.001 + 0.001 + 0.002 + 1e-4 * 104)
    assert costs.prefill_s("any", 256) == pytest.approx(0.003 + 2e-5 * 256 + 1e-8 * 256**2)
    assert costs.step == PRIOR_STEP.__class__(0.004, 0.0005)
    assert costs.hop_s == 0.006
    assert costs.take_s == pytest.approx(1e-6 * (4 + 0.001 * 448**2))
    assert costs.tokens_of_pixels.at(100_000) == pytest.approx(104)
    assert costs.text_prefill_s == pytest.approx(costs.prefill_s("any", 108))


def test_what_a_profile_does_not_have_is_made_up(tmp_path):
    texts = {name: MEASURED[name] for name in ("prefill", "step")}
    costs = read_prior(written(tmp_path, texts))
    assert (costs.encode_any, costs.hop_s) == (PRIOR_ENCODE, PRIOR_HOP_S)
    assert costs.prefill_s("any", 0) == pytest.approx(0.003)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file"),
        (b"not json", "does not hold stage costs"),
        (b"\xff\xfe", "does not hold stage costs"),
        (b"[" * 100_000, "does not hold stage costs"),
        ({}, "missing required field `prefill`"),
        ({"prefill": {}, "step": {}}, "prompts or steps cost nothing"),
        (MEASURED | {"step": {"fixed_s": -1.0}}, "Expected `float` >= 0"),
        (MEASURED | {"encode": {"per_unit_s": "much"}}, "Expected `float`, got `str`"),
    ],
)
def test_files_without_costs_are_refused_by_name(tmp_path, content, said):
    path = str(tmp_path / "none.json") if content is None else written(tmp_path, content)
    with pytest.raises(InvalidSettingError, match=said) as caught:
        read_prior(path)
    assert "routing.costs: " in str(caught.value)


def test_a_folder_is_no_file_of_costs(tmp_path):
    with pytest.raises(InvalidSettingError, match="cannot be read: Is a directory"):
        read_prior(str(tmp_path))


@pytest.mark.parametrize("name", ["~nobody-of-that-name/costs.json", "costs\0.json"])
def test_names_that_no_file_can_have_are_refused_like_files_that_are_not_there(name):
    with pytest.raises(InvalidSettingError, match=r"routing\.costs: .*(nobody knows where|NUL)"):
        read_prior(name)


@pytest.mark.parametrize(
    ("prior", "num_pictures", "paths"),
    [
        (None, 2, ("e-pd", 1)),
        (CHEAP_BUT_FAR, 2, ("agg", 0)),
        (DEAR, 2, ("e-pd", 1)),
    ],
)
def test_the_first_request_goes_where_measured_costs_say(prior, num_pictures, paths):
    async def main():
        async with serving("auto", policy="adaptive", prior=prior) as a_fleet:
            outcome = await outcome_of(a_fleet, ask("which", *(picture(f"p{one}") for one in range(num_pictures))))
            num_sent = a_fleet.router.stats().totals["encodes_sent"]
            assert (outcome.route.path, min(num_sent, 1)) == paths

    run(main())


def test_the_first_of_tiny_pictures_is_shared_out_only_where_they_are_known_to_cost():
    async def path_with(prior):
        async with serving("auto", policy="adaptive", prior=prior) as a_fleet:
            asked = ask("which", picture("a", side=32), picture("b", side=32))
            return (await outcome_of(a_fleet, asked)).route.path

    async def main():
        assert [await path_with(one) for one in (None, DEAR)] == ["agg", "e-pd"]

    run(main())


def test_a_wrong_prior_is_corrected_by_what_requests_cost():
    async def main():
        async with serving("auto", policy="adaptive", prior=CHEAP_BUT_FAR) as a_fleet:  # in truth 40 ms, and no way
            paths = []
            for index in range(20):
                pictures = [picture(f"{index}-{one}") for one in range(4)]
                outcome = await outcome_of(a_fleet, ask("which", *pictures, request_id=f"r{index}"))
                paths.append(outcome.route.path)
            assert (paths[0], paths[-1]) == ("agg", "e-pd")
            costs = a_fleet.router._parts.costs.costs()
            assert costs.encode_s("w0", 448**2) == pytest.approx(0.04, rel=0.2)

    run(main())


def test_a_measured_prior_outweighs_one_cold_request_and_is_forgotten_like_all_else():
    measured = StageCosts(prefill_any=Coefficients(0.0, 0.001))
    model = CostModel(measured)
    model.see_prefill("w", 256, 10.0)  # cold
    assert model.costs().prefill_s("w", 256) < 3.5
    assert CostModel().costs().prefill_s("w", 256) < 0.1
    for _ in range(150):
        model.see_prefill("w", 256, 0.05)
    assert model.costs().prefill_s("w", 256) == pytest.approx(0.05, rel=0.1)


def test_a_prior_that_counts_holds_as_it_is_before_anything_is_seen():
    line = Line(Coefficients(0.01, 0.001), 100.0, 5.0).coefficients()
    assert (line.at(0.0), line.at(100.0)) == (pytest.approx(0.01), pytest.approx(0.11))


def test_stages_are_compared_with_what_was_expected_of_them():
    model = CostModel(StageCosts(encode_any=Coefficients(0.1, 0.0), hop_s=0.01))
    model.see_encode("w", 3, 3000, 0.9)
    model.see_hop(0.02)
    assert model.totals["expected_s_encode"] == pytest.approx(0.3)
    assert model.totals["actual_s_encode"] == pytest.approx(0.9)
    assert (model.totals["expected_s_hop"], model.totals["actual_s_hop"]) == (0.01, 0.02)
    model.see_encode("w", 1, 1000, 0.3)
    assert 0.4 < model.totals["expected_s_encode"] < 0.6, "what was learned is expected from then on"


def test_a_receipt_has_what_was_expected_of_its_stages():
    async def main():
        async with serving("auto", policy="adaptive", prior=DEAR) as a_fleet:
            outcome = await outcome_of(a_fleet, ask("which", picture("a"), picture("b")))
            assert outcome.route.expected_s["encode"] == pytest.approx(0.4)
            assert outcome.route.expected_s["prefill"] > 0
            totals = a_fleet.router.stats().totals
            assert totals["expected_s_encode"] == pytest.approx(0.4, rel=0.1), "the second, after the first"
            assert totals["actual_s_encode"] == pytest.approx(0.08, rel=0.05)
            text = await outcome_of(a_fleet, ask("which", request_id="t"))
            assert set(text.route.expected_s) == {"prefill"}

    run(main())
