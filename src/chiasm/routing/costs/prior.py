"""What a fleet starts from before it has learned anything: made-up costs, or those of a file of `chiasm profile`."""

from typing import Annotated

import msgspec
from msgspec import Meta

from chiasm.errors import InvalidSettingError
from chiasm.routing.costs.line import Coefficients
from chiasm.routing.costs.model import (
    PRIOR_TOKENS_OF_CHARS,
    PRIOR_TOKENS_OF_PIXELS,
    TYPICAL_CHARS,
    TYPICAL_PIXELS,
    TYPICAL_TOKENS,
    StageCosts,
)
from chiasm.settings.paths import written_path

_MAX_BYTES = 16 << 20
_Amount = Annotated[float, Meta(ge=0, le=1e6)]


class _Line(msgspec.Struct, frozen=True):
    fixed_s: _Amount = 0.0
    per_unit_s: _Amount = 0.0

    @property
    def is_known(self) -> bool:
        return bool(self.fixed_s or self.per_unit_s)


class _Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What routing reads of a calibration, `chiasm.simulator.calibration.Calibration`; the rest is left alone."""

    prefill: _Line
    step: _Line
    media: _Line = _Line()
    encode: _Line = _Line()
    transfer: _Line = _Line()
    prefill_quadratic_s: _Amount = 0.0
    encode_quadratic_s: _Amount = 0.0
    context_s: _Amount = 0.0
    visual_tokens: _Line | None = None


def read_prior(path: str) -> StageCosts:
    """Stage costs of a file, in the units of routing. What the file does not have is made up.

    Raises:
        InvalidSettingError: The file cannot be read, or does not say what prompts and steps cost.
    """
    try:
        with written_path(path, "routing.costs").open("rb") as opened:
            content = opened.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InvalidSettingError(f"routing.costs: {path} cannot be read: {error.strerror}") from error
    try:
        if len(content) > _MAX_BYTES:
            raise InvalidSettingError(f"routing.costs: {path} has more than {_MAX_BYTES >> 20} MiB", hint=_HINT)
        profile = msgspec.json.decode(content, type=_Profile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidSettingError(f"routing.costs: {path} does not hold stage costs: {error}", hint=_HINT) from error
    if not (profile.prefill.is_known and profile.step.is_known):
        raise InvalidSettingError(f"routing.costs: in {path} prompts or steps cost nothing", hint=_HINT)
    return _stage_costs(profile)


_HINT = "Make one with `chiasm profile`."


def _stage_costs(profile: _Profile) -> StageCosts:
    """Lines, as they are learned: what grows with the square goes by pictures and prompts of a typical size."""
    made_up = StageCosts()
    prefill_s = profile.prefill.per_unit_s + profile.prefill_quadratic_s * TYPICAL_TOKENS
    prefill = Coefficients(profile.prefill.fixed_s, prefill_s)
    tokens = PRIOR_TOKENS_OF_PIXELS
    if profile.visual_tokens is not None and profile.visual_tokens.is_known:
        tokens = Coefficients(profile.visual_tokens.fixed_s, profile.visual_tokens.per_unit_s)
    crosses = profile.transfer.is_known
    return StageCosts(
        encode_any=_encode(profile, tokens) if profile.encode.is_known else made_up.encode_any,
        prefill_any=prefill,
        step=Coefficients(profile.step.fixed_s, profile.step.per_unit_s + profile.context_s * TYPICAL_TOKENS),
        hop_s=profile.transfer.fixed_s if crosses else made_up.hop_s,
        take_s=profile.transfer.per_unit_s * tokens.at(TYPICAL_PIXELS) if crosses else made_up.take_s,
        text_prefill_s=prefill.at(PRIOR_TOKENS_OF_CHARS.at(TYPICAL_CHARS)),
        tokens_of_pixels=tokens,
    )


def _encode(profile: _Profile, tokens: Coefficients) -> Coefficients:
    """Of one picture, from its bytes to its embedding, by pixels."""
    token_s = profile.encode.per_unit_s + profile.encode_quadratic_s * tokens.at(TYPICAL_PIXELS)
    return Coefficients(
        profile.media.fixed_s + profile.encode.fixed_s + token_s * tokens.fixed_s,
        profile.media.per_unit_s + token_s * tokens.per_unit_s,
    )
