"""Memory that pictures are decoded into one after the other: bounded, and never seen through a result."""

import numpy as np
import pytest

from chiasm.media.picture.decode import decode_pixels
from chiasm.media.picture.room import MAX_KEPT_BYTES, Room
from chiasm.media.prepare.base import ImagePlan, PreparedImage
from chiasm.media.prepare.medium import Announced, prepare_medium
from chiasm.settings import MediaSettings
from tests.unit.media.pictures import encode, exif_block, gradient, noise

SETTINGS = MediaSettings()


class GivesBack:
    """A preparer whose array is the picture itself."""

    def least_size(self, width, height):
        return None

    def prepare(self, picture, size):
        plan = ImagePlan(width=size[0], height=size[1], num_embeddings=1, num_prompt_tokens=1, resized=size)
        return PreparedImage(plan, {"pixel_values": picture[1:]})


@pytest.mark.parametrize("options", [{}, {"exif": exif_block(6)}, {"progressive": True}])
def test_pixels_are_the_same_and_lie_in_it(options):
    room, data = Room(), encode(noise(48, 32), "jpeg", **options)
    found = decode_pixels(data, SETTINGS, room=room)
    assert np.array_equal(found, decode_pixels(data, SETTINGS))
    assert room.num_bytes == 3 * 48 * 32
    assert room.owns(found) == ("exif" not in options)


def test_it_grows_to_the_largest_and_no_further():
    room = Room()
    for width, height in ((10, 10), (40, 30), (20, 20)):
        assert room.pixels(width, height).shape == (height, width, 3)
    assert room.num_bytes == 3 * 40 * 30
    large = room.pixels(MAX_KEPT_BYTES // 3 + 1, 1)
    assert not room.owns(large)
    assert room.num_bytes == 3 * 40 * 30


def test_a_result_outlives_the_next_picture():
    first, second = encode(gradient(48, 32), "jpeg"), encode(noise(48, 32), "jpeg")
    kept = prepare_medium(first, Announced(48, 32), GivesBack(), SETTINGS).prepared.arrays["pixel_values"]
    prepare_medium(second, Announced(48, 32), GivesBack(), SETTINGS)
    assert np.array_equal(kept, decode_pixels(first, SETTINGS)[1:])
