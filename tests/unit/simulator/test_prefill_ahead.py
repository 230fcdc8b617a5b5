import pytest

from chiasm.simulator.calibration import Calibration, Cost
from chiasm.simulator.cluster import aggregated, disaggregated
from chiasm.simulator.run import simulate
from chiasm.simulator.traffic import Picture, Request, RequestClass, Traffic

TRAFFIC = Traffic(classes=(RequestClass(num_images=2, num_pixels=100, visual_tokens=100),))


def ttft_s(fleet, costs, num_pictures=2):
    pictures = tuple(Picture(f"p{n}", 100, 100) for n in range(num_pictures))
    request = Request(number=0, at_s=0.0, class_name="all", text_tokens=1, output_tokens=1, pictures=pictures)
    return simulate(fleet, TRAFFIC, costs, requests=[request]).record.ttft_s[0]


def costs(*, ahead, media_s=0.0, encode_s=1.0, **fields):
    return Calibration(
        media=Cost(fixed_s=media_s),
        encode=Cost(fixed_s=encode_s),
        prefill=Cost(per_unit_s=0.01),
        step=Cost(fixed_s=0.1),
        max_encode_tokens=100,
        max_step_tokens=4096,
        media_threads=1,
        prefill_ahead=ahead,
        **fields,
    )


@pytest.mark.parametrize(("ahead", "expected_s"), [(False, 2.0 + 2.01), (True, 1.0 + 1.0 + 1.01)])
def test_a_prompt_is_computed_while_an_encoder_makes_its_second_picture(ahead, expected_s):
    assert ttft_s(disaggregated(1, 1), costs(ahead=ahead)) == pytest.approx(expected_s)


@pytest.mark.parametrize(("ahead", "expected_s"), [(False, 4.0 + 2.01), (True, 4.0 + 1.01)])
def test_the_same_worker_computes_ahead_while_its_media_threads_are_at_the_next(ahead, expected_s):
    assert ttft_s(aggregated(1), costs(ahead=ahead, media_s=2.0, encode_s=0.0)) == pytest.approx(expected_s)


def test_nothing_is_ahead_where_calls_would_cost_more_than_they_save():
    dear = costs(ahead=True, transfer=Cost(fixed_s=2.0))
    assert ttft_s(disaggregated(1, 1), dear) == pytest.approx(2.0 + 2.0 + 2.01)
