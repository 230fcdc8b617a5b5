"""Which frames a model gets, by the conventions of its own video processor; pure arithmetic."""

import math
from typing import Literal

import msgspec
import numpy as np

from chiasm.errors import MediaRefusedError

FPS_UNKNOWN = 24.0
"""What the Hugging Face processors take for a video that states no times."""


class SamplingRule(msgspec.Struct, frozen=True, kw_only=True):
    """How many frames, and how they are spread.

    Attributes:
        fps: Frames per second of the video's time; not with `num_frames`.
        num_frames: Frames of the whole video.
        min_frames, max_frames: Bounds for `fps`. Never more than there are.
        patch_frames: The number is made a multiple of it where there are enough.
        spread: "steps" (Qwen2-VL, Qwen2.5-VL): equal steps from the first frame. "ends" (Qwen3-VL): from the first
            frame to the last.
    """

    fps: float | None = 2.0
    num_frames: int | None = None
    min_frames: int = 4
    max_frames: int = 768
    patch_frames: int = 2
    spread: Literal["steps", "ends"] = "steps"


def sampled_indices(num_present: int, average_fps: float, rule: SamplingRule) -> list[int]:
    """Indices of frames, in order and without repetition: min(asked, present) of them.

    Where there are enough frames they are those of the Hugging Face video processor with the same parameters; where
    that one refuses because too few are there, all that fit are taken.

    Raises:
        MediaRefusedError: Frames per second were asked of a single frame, or of a video without times.
    """
    assert num_present > 0, "a video without frames has no header"
    asked = _asked(num_present, average_fps, rule)
    number = max(1, min(asked, num_present))
    if number == num_present:
        return list(range(num_present))
    if rule.spread == "ends":
        return [int(index) for index in np.linspace(0, num_present - 1, number).round()]
    return [min(int(np.float32(at * (num_present / number))), num_present - 1) for at in range(number)]


def _asked(num_present: int, average_fps: float, rule: SamplingRule) -> int:
    unit = rule.patch_frames if rule.spread == "steps" else 1
    if rule.num_frames is not None:
        number = rule.num_frames if unit == 1 else round(rule.num_frames / unit) * unit
        return number if number <= num_present else max(num_present // unit * unit, 1)
    if rule.fps is None:
        return num_present
    if average_fps <= 0:
        if num_present == 1:
            return 1
        raise MediaRefusedError("The video states no times, so frames per second cannot be taken of it")
    wanted = num_present / average_fps * rule.fps
    if rule.spread == "ends":
        return min(max(int(wanted), rule.min_frames), rule.max_frames, num_present)
    most = min(rule.max_frames, num_present) // unit * unit
    return math.floor(min(max(wanted, rule.min_frames), most, num_present) / unit) * unit
