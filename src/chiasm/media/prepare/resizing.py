"""The sizes at which models of the Qwen-VL families see pictures and frames."""

import math

from chiasm.media.prepare.pixels import require_aspect_ratio


def smart_resize(
    width: int, height: int, factor: int, min_pixels: int, max_pixels: int, *, number: int = 1, counted: int = 1
) -> tuple[int, int]:
    """Choose (width, height): multiples of `factor`, area within the limits, aspect ratio kept as far as that allows.

    For limits on all frames of a video, `number` is how many there are and `counted` how many of them the processor
    counts when it compares. Raises `MediaRefusedError` above an aspect ratio of 200, as the model's processor does.
    """
    require_aspect_ratio(width, height)
    new_width, new_height = (round(side / factor) * factor for side in (width, height))
    if counted * new_width * new_height > max_pixels:
        shrink = math.sqrt((number * height * width) / max_pixels)
        new_width, new_height = (max(factor, math.floor(side / shrink / factor) * factor) for side in (width, height))
    elif counted * new_width * new_height < min_pixels:
        grow = math.sqrt(min_pixels / (number * height * width))
        new_width, new_height = (math.ceil(side * grow / factor) * factor for side in (width, height))
    return new_width, new_height
