"""Simulations that would not end are refused before they begin, and those that fall behind without end are ended."""

import msgspec
import pytest

from chiasm.errors import InvalidSettingError
from chiasm.simulator import front
from chiasm.simulator.calibration import Calibration, Cost
from chiasm.simulator.cluster import adaptive, aggregated, disaggregated
from chiasm.simulator.compare import compare
from chiasm.simulator.failures import Failures
from chiasm.simulator.fleets import fleet_named
from chiasm.simulator.run import Changes, simulate
from chiasm.simulator.scaling import Scaling
from chiasm.simulator.size import check_size
from chiasm.simulator.traffic import MAX_TOKENS, Picture, Request, RequestClass, Traffic

COSTS = Calibration(prefill=Cost(fixed_s=0.004), step=Cost(fixed_s=0.003))
ISSUE = (
    RequestClass(name="images", num_images=3, output_tokens=128),
    RequestClass(name="text", text_tokens=300, output_tokens=128),
)


def traffic(num_requests, rate_per_s=2.0, **fields):
    return Traffic(classes=(RequestClass(**fields),), rate_per_s=rate_per_s, num_requests=num_requests)


def test_a_million_requests_over_a_thousand_workers_are_not_too_many():
    million = Traffic(classes=ISSUE, rate_per_s=2000.0, num_requests=1_000_000)
    for cluster in (aggregated(1000), adaptive(1000), disaggregated(200, 800)):
        check_size([cluster], million, COSTS)


@pytest.mark.parametrize(
    ("asked", "changes"),
    [
        (traffic(10_000_000, num_images=5), None),
        (traffic(1_000, num_images=10_000, visual_tokens=MAX_TOKENS), None),
        (traffic(1_000, text_tokens=MAX_TOKENS), None),
        (traffic(1_000, rate_per_s=1e-6), Changes(failures=Failures(mean_up_s=60.0))),
        (traffic(1_000, rate_per_s=0.001), Changes(failures=Failures(mean_up_s=1e-9, mean_down_s=0.0))),
        (traffic(1_000, rate_per_s=1e-6), Changes(scaling=Scaling(max_encoders=2))),
    ],
)
def test_what_would_take_days_is_refused_with_what_would_do(asked, changes):
    with pytest.raises(InvalidSettingError, match=r"million pieces of work.* 50 million are the most") as caught:
        check_size([aggregated(2)], asked, COSTS, changes=changes)
    assert caught.value.hint


def test_the_number_that_is_named_would_do():
    asked = traffic(10_000_000, num_images=5)
    with pytest.raises(InvalidSettingError) as caught:
        next(compare([aggregated(2)], asked, COSTS))
    number = int(caught.value.hint.split()[1].replace(",", ""))
    check_size([aggregated(2)], msgspec.structs.replace(asked, num_requests=number), COSTS)
    with pytest.raises(InvalidSettingError):
        check_size([aggregated(2)], msgspec.structs.replace(asked, num_requests=2 * number), COSTS)


def test_runs_and_fleets_add_up():
    asked = traffic(5_000_000)
    check_size([aggregated(1)], asked, COSTS)
    with pytest.raises(InvalidSettingError, match="on 1 fleet, 10 times each, is"):
        check_size([aggregated(1)], asked, COSTS, num_runs=10)
    with pytest.raises(InvalidSettingError):
        check_size([aggregated(1)] * 10, asked, COSTS)


def test_a_trace_is_counted_by_its_own_requests():
    request = Request(
        number=0,
        at_s=0.0,
        class_name="all",
        text_tokens=1,
        output_tokens=1,
        pictures=tuple(Picture(str(n), 1, MAX_TOKENS) for n in range(1000)),
    )
    with pytest.raises(InvalidSettingError):
        check_size([aggregated(1)], traffic(20), COSTS, requests=[request] * 20)
    check_size([aggregated(1)], traffic(20), COSTS, requests=[msgspec.structs.replace(request, pictures=())] * 20)


def test_fleets_are_bounded_by_all_their_workers():
    for text in ("colocated:100000,100000", "e-pd:99999,2", "e-p-d:50000,50000,1"):
        with pytest.raises(InvalidSettingError, match="workers"):
            fleet_named(text)
    assert len(fleet_named("colocated:10,2").workers) == 30


def test_a_fleet_that_falls_behind_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr(front, "MAX_OPEN", 50)
    with pytest.raises(InvalidSettingError, match=r"50 requests are under way at once.*: agg x1 does not") as caught:
        simulate(aggregated(1), traffic(1_000, rate_per_s=1e5), COSTS)
    assert "lower rate" in caught.value.hint


def test_how_many_requests_have_ended_is_told_now_and_then():
    told = []
    list(
        compare(
            [aggregated(1), aggregated(2)],
            traffic(2_500, rate_per_s=50.0, output_tokens=1),
            COSTS,
            on_ended=lambda cluster, count: told.append((cluster.name, count)),
        )
    )
    assert told == [(name, count) for name in ("agg x1", "agg x2") for count in (1000, 2000)]
