"""What a simulated router knows of costs: what production's cost model comes to after a while, the truth on average."""

from collections.abc import Iterable, Sequence

from chiasm.routing.costs.line import Coefficients
from chiasm.routing.costs.model import StageCosts
from chiasm.simulator.calibration import Calibration
from chiasm.simulator.cluster import WorkerSpec
from chiasm.simulator.traffic import RequestClass

CHARS_PER_TOKEN = 4


def known_costs(calibration: Calibration, classes: Sequence[RequestClass], workers: Iterable[WorkerSpec]) -> StageCosts:
    """Stage costs for policies, in the units that production has: pixels and characters instead of tokens."""
    tokens_per_pixel = _tokens_per_pixel(classes)
    texts = [one for one in classes if not one.num_images]
    total = sum(one.share for one in classes)
    return StageCosts(
        encode={
            one.name: _encode(calibration, tokens_per_pixel, calibration.encoder_factor)
            for one in workers
            if "prefill" not in one.roles and "decode" not in one.roles
        },
        encode_any=_encode(calibration, tokens_per_pixel, 1.0),
        prefill_any=Coefficients(calibration.prefill.fixed_s, calibration.prefill.per_unit_s),
        step=Coefficients(calibration.step.fixed_s, calibration.step.per_unit_s),
        hop_s=calibration.transfer.fixed_s,
        take_s=calibration.transfer.per_unit_s * max(one.visual_tokens * one.num_images for one in classes),
        output_tokens=sum(one.share * one.output_tokens for one in classes) / total,
        text_prefill_s=calibration.prefill_s(texts[0].text_tokens if texts else classes[0].text_tokens),
        tokens_of_chars=Coefficients(0.0, 1.0 / CHARS_PER_TOKEN),
        tokens_of_pixels=Coefficients(0.0, tokens_per_pixel),
    )


def _tokens_per_pixel(classes: Sequence[RequestClass]) -> float:
    with_pictures = [one for one in classes if one.num_images]
    if not with_pictures:
        return 0.0
    num_tokens = sum(one.share * one.num_images * one.visual_tokens for one in with_pictures)
    return num_tokens / sum(one.share * one.num_images * one.num_pixels for one in with_pictures)


def _encode(calibration: Calibration, tokens_per_pixel: float, factor: float) -> Coefficients:
    """Of one picture: its media work, and the tower on `factor` times slower hardware."""
    return Coefficients(
        calibration.media.fixed_s + factor * calibration.encode.fixed_s,
        calibration.media.per_unit_s + factor * calibration.encode.per_unit_s * tokens_per_pixel,
    )
