"""What a simulated router knows: the truth, for pictures and prompts as they are on average."""

import pytest

from chiasm.simulator.calibration import Calibration, Cost
from chiasm.simulator.cluster import disaggregated
from chiasm.simulator.known import known_costs
from chiasm.simulator.traffic import RequestClass

COSTS = Calibration(
    media=Cost(fixed_s=0.001, per_unit_s=1e-8),
    encode=Cost(fixed_s=0.002),
    encode_quadratic_s=1e-6,
    prefill=Cost(per_unit_s=1e-4),
    prefill_quadratic_s=1e-7,
    encoder_factor=2.0,
)


def test_what_grows_with_the_square_is_known_at_the_usual_size():
    kind = RequestClass(num_images=2, num_pixels=50_000, visual_tokens=100, text_tokens=60)
    found = known_costs(COSTS, [kind], disaggregated(1, 1).workers)
    media_s, tower_s = COSTS.media.at(50_000), COSTS.encode_s([100])
    assert found.encode_any.at(50_000) == pytest.approx(media_s + tower_s)
    assert found.encode["encode-0"].at(50_000) == pytest.approx(media_s + 2 * tower_s)
    assert found.prefill_any.at(260) == pytest.approx(COSTS.prefill_s(260))
