import json
import math

import pytest

from chiasm.errors import InvalidSettingError
from chiasm.simulator.calibration import Calibration, Cost, Interference, load_calibration, save_calibration
from chiasm.simulator.cluster import aggregated, split
from chiasm.simulator.fleets import fleet_named
from chiasm.simulator.run import simulate
from chiasm.simulator.summary import Objective, summarise
from chiasm.simulator.timeline import Timeline
from chiasm.simulator.traffic import RequestClass, Traffic

COSTS = Calibration(prefill=Cost(fixed_s=0.02), step=Cost(fixed_s=0.01), encode=Cost(fixed_s=0.05))
SLOW = RequestClass(name="images", num_images=1, output_tokens=5)
QUICK = RequestClass(name="text", output_tokens=5)


def summary(rate_per_s=0.5, objective=None, classes=(SLOW, QUICK), num_requests=200):
    traffic = Traffic(classes=classes, rate_per_s=rate_per_s, num_requests=num_requests, arrivals="constant", seed=1)
    return summarise(simulate(aggregated(1), traffic, COSTS), media_threads=2, objective=objective)


def test_classes_are_counted_apart_and_together_without_the_warm_up():
    found = summary()
    assert [one.name for one in found.classes] == ["images", "text"]
    assert sum(one.num_requests for one in found.classes) == found.all.num_requests == 180
    images, text = found.classes
    assert text.ttft_s.p50 == pytest.approx(0.02)
    assert images.ttft_s.p50 == pytest.approx(0.07)
    assert text.tpot_s.p99 == pytest.approx(0.01)
    assert text.e2el_s.mean == pytest.approx(0.06)


def test_answers_of_one_token_have_no_time_per_token():
    found = summary(classes=(RequestClass(output_tokens=1),))
    assert found.all.tpot_s is None
    assert found.all.attained == 1.0


def test_good_requests_meet_both_demands():
    found = summary(objective=Objective(ttft_s=0.05, tpot_s=0.1))
    images, text = found.classes
    assert (images.attained, text.attained) == (0.0, 1.0)
    assert found.goodput_per_s == pytest.approx(found.throughput_per_s * found.all.attained)
    assert summary(objective=Objective(tpot_s=0.009)).all.attained == 0.0


def test_a_fleet_that_does_not_keep_up_is_called_unstable():
    assert summary(rate_per_s=2.0).is_stable
    assert not summary(rate_per_s=60.0, classes=(SLOW,), num_requests=600).is_stable


def test_few_requests_at_once_are_no_sign_that_a_fleet_keeps_up():
    short = summary(rate_per_s=1e6, classes=(RequestClass(output_tokens=1),), num_requests=3)
    assert not short.is_stable


def test_the_busiest_stage_is_named_with_its_use():
    found = summary(rate_per_s=4.0, classes=(SLOW,))
    assert found.binding == "engine"
    assert found.utilisation["engine"] == pytest.approx(4.0 * (0.05 + 0.02 + 4 * 0.01), rel=0.05)


def test_fleets_go_by_names():
    assert fleet_named("agg:3").name == "agg x3"
    assert len(fleet_named("e-p-d:1,2,3").workers) == 6
    assert len(fleet_named("colocated:2,3").workers) == 8


@pytest.mark.parametrize(
    "text", ["", "agg", "agg:", "agg:0", "agg:-1", "agg:1,1", "e-pd:1", "what:1", "agg:1e9", "agg:²"]
)
def test_other_names_are_refused_with_what_to_write(text):
    with pytest.raises(InvalidSettingError) as caught:
        fleet_named(text)
    assert "agg" in caught.value.hint or "e-pd" in caught.value.hint


def test_how_many_there_may_be_is_said():
    with pytest.raises(InvalidSettingError) as caught:
        fleet_named("agg:1000000000")
    assert "from 1 to 100,000" in caught.value.hint


def test_calibrations_are_files(tmp_path):
    path = tmp_path / "costs.json"
    costs = Calibration(source="here", media=Cost(fixed_s=0.1), interference=Interference(resident=0.2))
    save_calibration(costs, path)
    assert load_calibration(path) == costs


@pytest.mark.parametrize("content", [None, b"", b"{}x", b'{"medium": {}}', b'{"media": {"fixed_s": -1}}'])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "costs.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidSettingError, match=r"costs\.json"):
        load_calibration(path)


def test_timelines_are_traces_with_a_process_for_each_worker(tmp_path):
    timeline = Timeline(max_requests=3)
    traffic = Traffic(classes=(SLOW,), rate_per_s=1.0, num_requests=20)
    simulate(split(1, 1, 1), traffic, COSTS, on_span=timeline.see)
    path = tmp_path / "trace.json"
    timeline.save(path)
    events = json.loads(path.read_bytes())["traceEvents"]
    assert {one["args"]["name"] for one in events if one["ph"] == "M"} == {"encode-0", "prefill-0", "decode-0"}
    stages = [one for one in events if one["ph"] == "X"]
    assert len(stages) == len(timeline) == 9
    assert all(one["dur"] >= 0 and math.isfinite(one["ts"]) for one in stages)
    assert {one["args"]["request"] for one in stages} == {0, 1, 2}
