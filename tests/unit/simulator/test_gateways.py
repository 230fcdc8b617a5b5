import pytest

from chiasm.errors import InvalidSettingError
from chiasm.simulator.calibration import Calibration, Cost
from chiasm.simulator.cluster import aggregated
from chiasm.simulator.failures import Failures
from chiasm.simulator.run import Changes, simulate
from chiasm.simulator.traffic import Picture, Request, RequestClass, Traffic

COSTS = Calibration(encode=Cost(fixed_s=1.0), prefill=Cost(fixed_s=0.5), step=Cost(fixed_s=0.1))
TRAFFIC = Traffic(classes=(RequestClass(num_images=1, repeat_share=0.5),))


def same_picture(count):
    for number in range(count):
        yield Request(
            number=number,
            at_s=10.0 * number,
            class_name="all",
            text_tokens=1,
            output_tokens=1,
            pictures=(Picture("p", 9, 9),),
            prefix="p",
        )


@pytest.mark.parametrize("num_gateways", [1, 3])
def test_a_gateway_knows_only_what_it_has_sent_itself(num_gateways):
    ttft_s = simulate(aggregated(1), TRAFFIC, COSTS, requests=same_picture(6), num_gateways=num_gateways).record.ttft_s
    assert list(ttft_s) == pytest.approx([1.5] * num_gateways + [0.5] * (6 - num_gateways))


def test_requests_with_a_start_in_common_may_come_to_the_same_gateway():
    together = simulate(
        aggregated(1), TRAFFIC, COSTS, requests=same_picture(6), num_gateways=3, keeps_together=True
    ).record.ttft_s
    assert list(together) == pytest.approx([1.5] + [0.5] * 5)


def test_deaths_are_for_one_gateway():
    changes = Changes(failures=Failures(mean_up_s=1.0))
    with pytest.raises(InvalidSettingError, match="one gateway"):
        simulate(aggregated(1), TRAFFIC, COSTS, changes=changes, num_gateways=2)
