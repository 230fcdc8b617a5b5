"""What a simulated router knows: the truth, for pictures and prompts as they are on average."""

import pytest

from chiasm.routing.costs.prior import read_prior
from chiasm.simulator.calibration import Calibration, Cost, save_calibration
from chiasm.simulator.cluster import aggregated, disaggregated
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


def test_a_gateway_that_starts_from_the_file_knows_what_a_simulated_one_does(tmp_path):
    calibration = Calibration(
        media=Cost(fixed_s=0.001, per_unit_s=1e-8),
        encode=Cost(fixed_s=0.002, per_unit_s=1e-4),
        encode_quadratic_s=1e-7,
        prefill=Cost(fixed_s=0.003, per_unit_s=2e-5),
        step=Cost(fixed_s=0.004, per_unit_s=0.0005),
        transfer=Cost(fixed_s=0.006, per_unit_s=1e-6),
        visual_tokens=Cost(per_unit_s=256 / 448**2),
    )
    save_calibration(calibration, tmp_path / "costs.json")
    read = read_prior(str(tmp_path / "costs.json"))
    pictures = RequestClass(num_images=1, num_pixels=448 * 448, visual_tokens=256, text_tokens=64, output_tokens=8)
    known = known_costs(calibration, [pictures], aggregated(1).workers)
    for pixels in (0, 448 * 448, 1_000_000):
        assert read.encode_s("any", pixels) == pytest.approx(known.encode_s("any", pixels))
    assert read.prefill_any == known.prefill_any
    assert read.step == known.step
    assert (read.hop_s, read.take_s) == (pytest.approx(known.hop_s), pytest.approx(known.take_s))
