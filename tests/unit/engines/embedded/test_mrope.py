"""M-RoPE positions, token by token."""

import numpy as np
import pytest

from chiasm.engines.embedded.families.base import PlacedImage
from chiasm.engines.embedded.mrope import frequency_axes, linear_positions, mrope_positions
from chiasm.media.prepare.base import ImagePlan


def placed(offset, rows, columns, merge=2):
    plan = ImagePlan(
        width=1,
        height=1,
        num_embeddings=rows * columns,
        num_prompt_tokens=rows * columns,
        grid_thw=(1, rows * merge, columns * merge),
        merge_size=merge,
        resized=(1, 1),
    )
    return PlacedImage(plan, offset, rows * columns)


def test_text_counts_on_all_axes():
    positions, next_position = mrope_positions(3, [])
    assert positions.tolist() == [[0, 1, 2]] * 3
    assert next_position == 3


def test_no_tokens():
    positions, next_position = mrope_positions(0, [])
    assert positions.shape == (3, 0)
    assert next_position == 0


def test_a_picture_spans_rows_and_columns_and_text_goes_on_behind_the_longer_side():
    positions, next_position = mrope_positions(9, [placed(1, 2, 3)])
    assert positions.tolist() == [
        [0, 1, 1, 1, 1, 1, 1, 4, 5],
        [0, 1, 1, 1, 2, 2, 2, 4, 5],
        [0, 1, 2, 3, 1, 2, 3, 4, 5],
    ]
    assert next_position == 6


def test_pictures_at_the_start_next_to_each_other_and_at_the_end():
    positions, next_position = mrope_positions(6, [placed(0, 2, 1), placed(2, 1, 4)])
    assert positions.tolist() == [[0, 0, 2, 2, 2, 2], [0, 1, 2, 2, 2, 2], [0, 0, 2, 3, 4, 5]]
    assert next_position == 6


def test_a_picture_that_takes_another_number_of_tokens_is_a_bug():
    with pytest.raises(AssertionError, match="whole frames of merged patches"):
        mrope_positions(9, [PlacedImage(placed(0, 2, 2).plan, 0, 5)])


def test_linear_positions_count_tokens():
    positions, next_position = linear_positions(4)
    assert positions.tolist() == [[0, 1, 2, 3]]
    assert next_position == 4


def test_chunked_frequencies_run_axis_by_axis():
    assert frequency_axes([2, 1, 3], interleaved=False).tolist() == [0, 0, 1, 2, 2, 2]


def test_interleaved_frequencies_take_turns_until_rows_and_columns_are_used_up():
    assert frequency_axes([4, 2, 2], interleaved=True).tolist() == [0, 1, 2, 0, 1, 2, 0, 0]


@pytest.mark.parametrize("sections", [[24, 20, 20], [12, 10, 10], [16, 24, 24]])
def test_every_axis_gets_its_share(sections):
    layouts = [False] if sections[0] < sections[1] else [False, True]
    for interleaved in layouts:
        axes = frequency_axes(sections, interleaved=interleaved)
        assert np.bincount(axes).tolist() == sections
