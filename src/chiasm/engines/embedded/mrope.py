"""Multimodal rotary positions (M-RoPE): every token has a time, a row and a column coordinate.

Text advances all three together. A picture starts at the current position: its time stays there while rows and columns
count up; the text after it goes on behind the longer side. A video in one run is such a picture whose time goes on
from frame to frame, by one or by the clock; in runs with text between them, each run is a picture. Checked against
`get_rope_index` in `tests/numeric`.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from chiasm.engines.embedded.families.base import PlacedImage

AXES = 3


def mrope_positions(
    num_tokens: int, images: Sequence[PlacedImage], ticks_per_s: float | None = None
) -> tuple[NDArray[np.int64], int]:
    """Positions [3, num_tokens] (time, row, column) and the position of the next token. `images` in prompt order.

    `ticks_per_s` is how far time advances in a second of a video; None for one step a frame.
    """
    positions = np.empty((AXES, num_tokens), np.int64)
    token = position = 0
    for image in images:
        for start, end, times in _runs(image, ticks_per_s):
            position = _text(positions, token, start, position)
            position = _block(positions[:, start:end], image, times, position)
            token = end
    _text(positions, token, num_tokens, position)
    return positions, int(positions.max()) + 1 if num_tokens else 0


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


def _runs(image: PlacedImage, ticks_per_s: float | None) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """Start, end and the times of the frames of each run of embedding rows."""
    assert image.plan.grid_thw is not None, "an M-RoPE picture has a grid"
    frames = image.plan.grid_thw[0]
    starts = image.runs or (image.offset,)
    length = image.plan.num_embeddings // len(image.runs) if image.runs else image.num_tokens
    if len(starts) > 1 or frames == 1:
        times = np.zeros(1, np.int64)
    elif ticks_per_s is None or image.plan.second_per_grid_s is None:
        times = np.arange(frames)
    else:  # in single precision, as the model's own code does, because the result is cut off
        ticks = np.float32(ticks_per_s) * np.float32(image.plan.second_per_grid_s)
        times = (np.arange(frames, dtype=np.float32) * ticks).astype(np.int64)
    return ((start, start + length, times) for start in starts)


def _block(block: NDArray[np.int64], image: PlacedImage, times: NDArray[np.int64], position: int) -> int:
    assert image.plan.grid_thw is not None, "an M-RoPE picture has a grid"
    rows, columns = (side // image.plan.merge_size for side in image.plan.grid_thw[1:])
    assert len(times) * rows * columns == block.shape[1], "a run is whole frames of merged patches"
    block[0] = position + np.repeat(times, rows * columns)
    block[1] = position + np.tile(np.repeat(np.arange(rows), columns), len(times))
    block[2] = position + np.tile(np.arange(columns), len(times) * rows)
    return position + max(rows, columns)
