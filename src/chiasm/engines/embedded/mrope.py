"""Multimodal rotary positions (M-RoPE): every token has a time, a row and a column coordinate.

Text advances all three together. A picture starts at the current position: its time stays there while rows and columns
count up; the text after it goes on behind the longer side. Checked against `get_rope_index` in `tests/numeric`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from chiasm.engines.embedded.families.base import PlacedImage

AXES = 3


def mrope_positions(num_tokens: int, images: Sequence[PlacedImage]) -> tuple[NDArray[np.int64], int]:
    """Positions [3, num_tokens] (time, row, column) and the position of the next token. `images` in prompt order."""
    positions = np.empty((AXES, num_tokens), np.int64)
    token = position = 0
    for image in images:
        position = _text(positions, token, image.offset, position)
        token = image.offset + image.num_tokens
        position = _image(positions[:, image.offset : token], image, position)
    return positions, _text(positions, token, num_tokens, position)


def linear_positions(num_tokens: int) -> tuple[NDArray[np.int64], int]:
    """Positions [1, num_tokens] of models that count tokens, and the position of the next one."""
    return np.arange(num_tokens, dtype=np.int64)[None], num_tokens


def frequency_axes(sections: Sequence[int], *, interleaved: bool) -> NDArray[np.int64]:
    """Which axis (0 time, 1 row, 2 column) drives each rotary frequency.

    `sections` counts frequencies per axis. Chunked (Qwen2-VL) gives each axis one run; interleaved (Qwen3-VL) lets rows
    and columns take turns with time at the start, and time has the rest.
    """
    if not interleaved:
        return np.repeat(np.arange(AXES, dtype=np.int64), sections)
    axes = np.zeros(sum(sections), np.int64)
    for axis in (1, 2):
        axes[axis : AXES * sections[axis] : AXES] = axis
    return axes


def _text(positions: NDArray[np.int64], start: int, end: int, position: int) -> int:
    positions[:, start:end] = np.arange(position, position + end - start)
    return position + end - start


def _image(block: NDArray[np.int64], image: PlacedImage, position: int) -> int:
    assert image.plan.grid_thw is not None, "an M-RoPE picture has a grid"
    frames, *sides = image.plan.grid_thw
    rows, columns = (side // image.plan.merge_size for side in sides)
    assert frames == 1 and rows * columns == image.num_tokens, "a picture is one frame of merged patches"
    block[0] = position
    block[1] = position + np.repeat(np.arange(rows), columns)
    block[2] = position + np.tile(np.arange(columns), rows)
    return position + max(rows, columns)
