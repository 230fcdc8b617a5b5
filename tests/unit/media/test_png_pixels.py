"""The short way through PNG gives Pillow's pixels, and hands over whatever is not everyday."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from chiasm.media.picture.png_pixels import plain_png
from tests.unit.media.pictures import gradient

pytest.importorskip("chiasm.media.kernels.native", reason="built without a C compiler")


def png(image, **options):
    out = io.BytesIO()
    image.save(out, "PNG", **options)
    return out.getvalue()


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def made(rows, size=(3, 2), colours=2, depth=8, interlace=0, before=b"", between=b""):
    """A file from its filtered rows, with chunks before and inside of its data."""
    deflated = zlib.compress(rows)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, depth, colours, 0, 0, interlace))
    data = chunk(b"IDAT", deflated[:5]) + between + chunk(b"IDAT", deflated[5:])
    return b"\x89PNG\r\n\x1a\n" + header + before + data + chunk(b"IEND", b"")


ROWS = b"".join(bytes([number, *range(9)]) for number in (0, 1))


def noise(width, height, channels):
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, channels), np.uint8)
    pixels[: height // 2] //= 8  # flat and rough parts, so that every filter is chosen
    if channels == 4:
        pixels[..., 3] = 255
    return Image.fromarray(pixels)


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("size", [(1, 1), (5, 1), (1, 9), (64, 48), (301, 77)])
def test_pixels_are_pillows(size, channels):
    image = noise(*size, channels)
    assert np.array_equal(plain_png(png(image)), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("number", range(5))
def test_every_filter_is_undone(number, channels):
    rng = np.random.default_rng(number)
    samples = rng.integers(0, 256, (6, 7 * channels), np.uint8)
    if channels == 4:
        samples[:, 3::4] = 0  # as sums of zeros
        samples[0, 3] = 255
    rows = b"".join(bytes([number]) + row.tobytes() for row in samples)
    data = made(rows, (7, 6), 2 if channels == 3 else 6)
    theirs = Image.open(io.BytesIO(data))
    theirs.load()
    ours = plain_png(data)
    if channels == 3:
        assert np.array_equal(ours, np.asarray(theirs))
    elif theirs.getchannel("A").getextrema() == (255, 255):
        assert np.array_equal(ours, np.asarray(theirs.convert("RGB")))
    else:
        assert ours is None


@pytest.mark.parametrize("mode", ["L", "P", "1", "LA", "I;16"])
def test_other_modes_are_left_to_pillow(mode):
    image = Image.fromarray(np.zeros((4, 4), np.uint16)) if mode == "I;16" else gradient().convert(mode)
    assert plain_png(png(image)) is None


def test_harmless_chunks_do_not_matter():
    info = PngImagePlugin.PngInfo()
    info.add_text("Author", "somebody")
    info.add_itxt("XML:com.adobe.xmp", "<x/>")
    image = gradient()
    data = png(image, pnginfo=info, dpi=(72, 72), icc_profile=b"profile" * 100)
    assert np.array_equal(plain_png(data), np.asarray(image))


def test_what_pillow_inflates_is_left_to_it():
    info = PngImagePlugin.PngInfo()
    info.add_text("Author", "somebody", zip=True)
    assert plain_png(png(gradient(), pnginfo=info)) is None
    info = PngImagePlugin.PngInfo()
    info.add_itxt("a", "b", zip=True)
    assert plain_png(png(gradient(), pnginfo=info)) is None
    assert plain_png(png(gradient(), icc_profile=bytes(2**21))) is None
    assert plain_png(made(ROWS, before=chunk(b"iCCP", b"name\0\0nonsense"))) is None


def test_transparency_and_animation_are_left_to_pillow():
    half = gradient().convert("RGBA")
    half.putalpha(128)
    assert plain_png(png(half)) is None
    assert plain_png(png(gradient(), transparency=(0, 0, 0))) is None
    assert plain_png(png(gradient(), save_all=True, append_images=[gradient().transpose(0)])) is None


def test_what_is_wrong_is_left_to_pillow():
    good = made(ROWS)
    assert plain_png(good) is not None
    assert plain_png(made(ROWS[:-1])) is None, "too few bytes"
    assert plain_png(made(ROWS + b"0")) is None, "too many"
    assert plain_png(made(bytes([9]) + ROWS[1:])) is None, "an unknown filter"
    assert plain_png(made(ROWS, interlace=1)) is None
    assert plain_png(made(ROWS, depth=16)) is None
    assert plain_png(made(ROWS, between=chunk(b"tIME", bytes(7)))) is None, "data in two runs"
    for at in range(16, len(good) - 4):  # the checksum of the end itself nobody needs
        assert plain_png(good[:at]) is None, "cut off"


def test_a_flipped_bit_is_never_another_picture():
    good = made(ROWS)
    expected = plain_png(good)
    for at in range(8, len(good)):
        for bit in (1, 128):
            bad = bytearray(good)
            bad[at] ^= bit
            pixels = plain_png(bytes(bad))
            assert pixels is None or np.array_equal(pixels, expected)
