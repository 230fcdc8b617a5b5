"""A PNG is whole when as many rows are there as its header says, whatever its pixels are made of."""

import zlib

import pytest
from PIL import Image

from chiasm.errors import MediaDecodeError
from chiasm.media.picture.decode import decode_pixels
from chiasm.media.picture.png_rows import require_rows
from chiasm.settings import MediaSettings
from tests.unit.media.pictures import chunk, encode, gradient, noise, png


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGB", "RGBA", "I;16"])
@pytest.mark.parametrize("size", [(1, 1), (3, 2), (17, 9)])
def test_whole_pictures_pass(mode, size):
    picture = Image.new(mode, size) if mode == "I;16" else noise(*size).convert(mode)
    require_rows(encode(picture, "png"))


@pytest.mark.parametrize(("width", "height"), [(1, 1), (2, 2), (4, 5), (8, 8), (9, 17)])
def test_passes_of_interlaced_pictures_are_counted(width, height):
    """Libpng's own rule: a pass without columns has no rows."""
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    rows = 0
    for left, top, across, down in passes:
        columns = len(range(left, width, across))
        rows += (1 + columns) * len(range(top, height, down)) if columns else 0
    whole = _interlaced(width, height, bytes(rows))
    require_rows(whole)
    decode_pixels(whole, MediaSettings())
    with pytest.raises(MediaDecodeError, match="fewer rows"):
        require_rows(_interlaced(width, height, bytes(rows - 1)))


def test_more_than_needed_and_other_damage_are_for_the_decoder():
    require_rows(png(4, 4, chunk(b"IDAT", zlib.compress(bytes(1000))), depth=8, colour=2))
    data = encode(gradient(), "png")
    for at in range(16, len(data), 7):
        require_rows(data[:at])


def _interlaced(width, height, rows):
    data = png(width, height, chunk(b"IDAT", zlib.compress(rows)), depth=8, colour=0)
    head = data[12:28] + b"\1"
    return data[:28] + b"\1" + zlib.crc32(head).to_bytes(4, "big") + data[33:]
