"""What one request costs, stage by stage, with nothing beside it."""

from collections.abc import Sequence
from math import ceil

import msgspec

from chiasm.simulator.calibration import Calibration
from chiasm.simulator.traffic import RequestClass


class StageTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of work of one request. `media` and `encode` are over all its new pictures, `decode` over all tokens."""

    request: float = 0.0
    media: float = 0.0
    encode: float = 0.0
    transfer: float = 0.0
    prefill: float = 0.0
    kv_transfer: float = 0.0
    decode: float = 0.0

    @property
    def first_token(self) -> float:
        """All before the first token, one after the other, nothing split off."""
        return self.request + self.media + self.encode + self.prefill


def stage_times(kind: RequestClass, costs: Calibration) -> StageTimes:
    """Work of an average request of a class; pictures that come again cost neither media nor encoding."""
    num_new = kind.num_images * (1.0 - kind.repeat_share)
    num_visual = kind.num_images * kind.visual_tokens
    num_cached = num_visual * kind.repeat_share if kind.pictures_first else 0.0
    num_tokens = kind.text_tokens + num_visual - num_cached
    num_steps = max(1, ceil(num_tokens / costs.max_step_tokens))
    context = num_visual + kind.text_tokens + kind.output_tokens / 2
    return StageTimes(
        request=costs.request.at(kind.num_images),
        media=num_new * costs.media.at(kind.num_pixels),
        encode=num_new * costs.encode_s([kind.visual_tokens]),
        transfer=costs.transfer.at(num_new * kind.visual_tokens) if num_new else 0.0,
        prefill=(num_steps - 1) * costs.prefill.fixed_s + costs.prefill_s(round(num_tokens)),
        kv_transfer=costs.kv_transfer.at(kind.text_tokens + num_visual),
        decode=(kind.output_tokens - 1) * costs.step_s(1, context),
    )


def average(classes: Sequence[RequestClass], costs: Calibration) -> StageTimes:
    """Work of an average request of a mix."""
    total = sum(one.share for one in classes)
    parts = [(one.share / total, stage_times(one, costs)) for one in classes]
    fields = StageTimes.__struct_fields__
    return StageTimes(**{name: sum(share * getattr(times, name) for share, times in parts) for name in fields})
