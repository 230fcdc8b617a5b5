"""Encoders that were slow once are tried again: after a pause, by one request."""

import asyncio

import pytest

from chiasm.routing.costs.line import Coefficients
from chiasm.routing.costs.model import CostModel
from chiasm.routing.costs.trials import Trials
from tests.unit.routing.fleets import outcome_of, serving
from tests.unit.routing.scripted import ALL, ask, picture
from tests.unit.routing.virtual_time import run

AVERAGE = Coefficients(0.2, 1e-6)
WORKERS = {"e0": ("encode",), "w0": ALL}


def hopes(trials, now_s):
    return dict(trials.hopes(AVERAGE, now_s))


def test_hope_begins_at_the_average_and_halves_with_each_pause():
    trials = Trials(60.0, 8)
    trials.see("e", 100.0, is_slow=True)
    assert hopes(trials, 159.0) == {}
    assert hopes(trials, 160.0) == {"e": AVERAGE}
    assert hopes(trials, 280.0)["e"].fixed_s == pytest.approx(0.05)


def test_who_disappoints_is_left_alone_longer_and_who_does_not_as_long_as_others():
    trials, now_s, pauses = Trials(60.0, 8), 0.0, []
    for _ in range(7):
        trials.see("e", now_s, is_slow=True)
        start_s = now_s
        while not trials.is_due("e", now_s):
            now_s += 60.0
        pauses.append(now_s - start_s)
    assert pauses == [60.0, 120.0, 240.0, 480.0, 960.0, 960.0, 960.0]
    trials.see("e", now_s, is_slow=False)
    assert trials.is_due("e", now_s + 60.0)


def test_slow_work_in_a_row_is_one_disappointment():
    trials = Trials(60.0, 8)
    for now_s in (0.0, 1.0, 2.0):
        trials.see("e", now_s, is_slow=True)
    assert trials.is_due("e", 62.0)


def test_without_a_pause_nobody_is_tried_again():
    trials = Trials(0.0, 8)
    trials.see("e", 0.0, is_slow=True)
    assert hopes(trials, 1e9) == {}
    assert not trials.is_due("e", 1e9)


def slow_and_quick(retry_slow_s=60.0):
    model = CostModel(retry_slow_s=retry_slow_s)
    model.see_encode("slow", 1, 200_000, 5.0, 0.0)
    for now_s in range(1, 30):
        model.see_encode("quick", 1, 200_000, 0.2, now_s)
    return model


def test_only_who_is_slower_than_the_fleet_is_hoped_of():
    model = slow_and_quick()
    assert model.hopes(59.0) == {}
    assert set(model.hopes(200.0)) == {"slow"}
    assert model.hopes(200.0) is model.hopes(200.5)


def test_what_a_trial_finds_takes_the_place_of_what_was_known():
    model = slow_and_quick()
    assert set(model.hopes(60.0)) == {"slow"}
    model.see_encode("slow", 1, 200_000, 0.1, 60.1)
    assert model.costs().encode_s("slow", 200_000) == pytest.approx(0.1, rel=0.3)
    assert model.hopes(60.2) == {}


def test_before_the_pause_is_over_what_is_seen_joins_what_was_known():
    model = slow_and_quick()
    model.see_encode("slow", 1, 200_000, 0.1, 30.0)
    assert model.costs().encode_s("slow", 200_000) > 1.0


def number_encoded_by(a_fleet, name):
    return len(a_fleet[name].encoded)


def ask_for(name, index=0):
    return ask("which", *(picture(f"{name} {index} {one}") for one in range(4)), request_id=f"{name}{index}")


async def warm_up(a_fleet):
    """The encoder's first pictures take far longer than the others will; then it is left alone."""
    a_fleet["e0"].encode_s, a_fleet["w0"].encode_s = 5.0, 0.2
    await outcome_of(a_fleet, ask_for("first"))
    assert number_encoded_by(a_fleet, "e0") > 0
    a_fleet["e0"].encode_s = 0.05
    for index in range(8):
        await outcome_of(a_fleet, ask_for("next", index))


@pytest.mark.parametrize(("pause_s", "is_tried"), [(60.0, True), (0.0, False)])
def test_an_encoder_that_warmed_up_slowly_is_used_after_a_pause(pause_s, is_tried):
    async def main():
        async with serving("auto", WORKERS, policy="adaptive", retry_slow_encoder_s=pause_s) as a_fleet:
            await warm_up(a_fleet)
            num_before = number_encoded_by(a_fleet, "e0")
            await asyncio.sleep(90.0)
            outcome = await outcome_of(a_fleet, ask_for("later"))
            assert (number_encoded_by(a_fleet, "e0") > num_before) == is_tried
            assert ("e0 is tried again: it was slow" in outcome.routes[0].reason) == is_tried
            if is_tried:
                outcome = await outcome_of(a_fleet, ask_for("then"))
                assert number_encoded_by(a_fleet, "e0") > num_before + 2
                assert "tried again" not in outcome.routes[0].reason

    run(main())


def test_of_many_requests_at_once_one_tries_it():
    async def main():
        async with serving("auto", WORKERS, policy="adaptive") as a_fleet:
            await warm_up(a_fleet)
            a_fleet["e0"].encode_s = 5.0
            await asyncio.sleep(90.0)
            outcomes = await asyncio.gather(*(outcome_of(a_fleet, ask_for("burst", index)) for index in range(6)))
            assert sum("tried again" in one.routes[0].reason for one in outcomes) == 1
            await asyncio.sleep(30.0)
            outcome = await outcome_of(a_fleet, ask_for("soon"))
            assert "tried again" not in outcome.routes[0].reason

    run(main())
