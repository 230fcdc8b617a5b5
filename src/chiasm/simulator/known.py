"""What a simulated router knows of costs: what production's cost model comes to after a while, the truth on average."""

from collections.abc import Iterable, Sequence

from chiasm.errors import InvalidSettingError
from chiasm.routing.costs.line import Coefficients
from chiasm.routing.costs.model import StageCosts
from chiasm.simulator.calibration import Calibration
from chiasm.simulator.cluster import WorkerSpec
from chiasm.simulator.traffic import RequestClass

CHARS_PER_TOKEN = 4


def known_costs(calibration: Calibration, classes: Sequence[RequestClass], workers: Iterable[WorkerSpec]) -> StageCosts:
    """Stage costs for policies, in the units that production has: pixels and characters instead of tokens.

    Production fits lines: what grows with the square goes by what pictures and prompts have on average.

    Raises:
        InvalidSettingError: There are pictures, and nothing says what they cost.
    """
    if any(one.num_images for one in classes) and not calibration.knows_pictures:
        raise InvalidSettingError(
            "The traffic has pictures, and the calibration does not say what they cost: it is of a model that takes "
            "none, or of an engine that does not tell encoding from prompts",
            hint="Profile a model with pictures on Chiasm's own engine, or describe traffic without: --images 0",
        )
    tokens_per_pixel = _tokens_per_pixel(classes)
    encode_s = calibration.encode.per_unit_s + calibration.encode_quadratic_s * _tokens_of_a_picture(classes)
    tower = Coefficients(calibration.encode.fixed_s, encode_s * tokens_per_pixel)
    prefill_s = calibration.prefill.per_unit_s + calibration.prefill_quadratic_s * _tokens_of_a_prompt(classes)
    texts = [one for one in classes if not one.num_images]
    total = sum(one.share for one in classes)
    return StageCosts(
        encode={
            one.name: _encode(calibration, tower, calibration.encoder_factor * one.encoder_factor)
            for one in workers
            if "prefill" not in one.roles and "decode" not in one.roles
        },
        encode_any=_encode(calibration, tower, 1.0),
        prefill_any=Coefficients(calibration.prefill.fixed_s, prefill_s),
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


def _tokens_of_a_picture(classes: Sequence[RequestClass]) -> float:
    counts = [(one.share * one.num_images, one.visual_tokens) for one in classes]
    total = sum(count for count, _ in counts)
    return sum(count * num_tokens for count, num_tokens in counts) / total if total else 0.0


def _tokens_of_a_prompt(classes: Sequence[RequestClass]) -> float:
    total = sum(one.share for one in classes)
    return sum(one.share * (one.text_tokens + one.num_images * one.visual_tokens) for one in classes) / total


def _encode(calibration: Calibration, tower: Coefficients, factor: float) -> Coefficients:
    """Of one picture: its media work, and the tower on `factor` times slower hardware."""
    return Coefficients(
        calibration.media.fixed_s + factor * tower.fixed_s, calibration.media.per_unit_s + factor * tower.per_unit_s
    )
