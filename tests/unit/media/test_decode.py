"""Pixels, not statuses: what the model would see for each kind of picture."""

import io
import zlib

import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageOps

from chiasm.errors import MediaDecodeError, MediaTooLargeError, UnsupportedMediaError
from chiasm.media.picture.decode import MAX_JPEG_SCANS, decode_picture
from chiasm.settings import MediaSettings
from tests.unit.media.pictures import (
    FORMATS,
    animation,
    chunk,
    encode,
    gradient,
    largest_difference,
    noise,
    png,
    with_frame_size,
)

SETTINGS = MediaSettings()
WHITE, RED, BLUE = (255, 255, 255), (255, 0, 0), (0, 0, 255)


def decode(data, **options):
    return decode_picture(data, MediaSettings(**options))


def colours(image):
    return {pixel for _, pixel in image.getcolors()}


@pytest.mark.parametrize("kind", ["png", "bmp", "tiff"])
def test_lossless_formats_come_back_exactly(kind):
    image = noise()
    decoded = decode(encode(image, kind))
    assert decoded.mode == "RGB"
    assert largest_difference(decoded, image) == 0


def test_lossless_webp_comes_back_exactly():
    assert largest_difference(decode(encode(noise(), "webp", lossless=True)), noise()) == 0


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_pillows_own_pixels(kind):
    data = encode(gradient(61, 43), kind)
    assert largest_difference(decode(data), Image.open(io.BytesIO(data)).convert("RGB")) == 0


@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"progressive": True}, {"quality": 30}])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_jpeg_is_bit_for_bit_pillows(mode, options):
    data = encode(noise(67, 45).convert(mode), "jpeg", **options)
    assert largest_difference(decode(data), Image.open(io.BytesIO(data)).convert("RGB")) == 0


def test_one_bit_and_palette_pictures():
    one_bit = gradient().convert("1")
    assert largest_difference(decode(encode(one_bit, "png")), one_bit.convert("RGB")) == 0
    palette = gradient().convert("P", palette=Image.Palette.ADAPTIVE, colors=16)
    assert largest_difference(decode(encode(palette, "png")), palette.convert("RGB")) == 0


class TestTransparency:
    def test_hidden_colours_never_show(self):
        invisible = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
        assert colours(decode(encode(invisible, "png"))) == {WHITE}
        assert colours(decode(encode(invisible, "png"), background=(0, 0, 0))) == {(0, 0, 0)}

    def test_grey_with_alpha(self):
        assert colours(decode(encode(Image.new("LA", (8, 8), (0, 0)), "png"))) == {WHITE}

    def test_the_same_picture_stored_in_three_ways_looks_the_same(self):
        grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
        alpha = np.arange(255, -1, -1, dtype=np.uint8).reshape(16, 16)
        rgba = Image.fromarray(np.dstack([grey, grey, grey, alpha]), "RGBA")
        la = Image.fromarray(np.dstack([grey, alpha]), "LA")
        palette = Image.fromarray(grey, "P")
        palette.putpalette([value for value in range(256) for _ in range(3)])
        stored = [
            encode(rgba, "png"),
            encode(la, "png"),
            encode(palette, "png", transparency=alpha.tobytes()),  # tRNS as bytes: one alpha for each colour
            encode(rgba, "webp", lossless=True, exact=True),
        ]
        assert stored[2].count(b"tRNS") == 1
        by_hand = (grey.astype(float) * alpha + 255.0 * (255 - alpha)) / 255
        pictures = [decode(data) for data in stored]
        for picture in pictures:
            assert largest_difference(picture, pictures[0]) == 0
        assert np.abs(np.asarray(pictures[0])[..., 0] - by_hand).max() <= 0.5

    def test_a_palette_with_one_transparent_colour(self):
        picture = Image.new("P", (4, 2), 1)
        picture.putpalette([*RED, *BLUE])
        picture.putpixel((0, 0), 0)
        decoded = decode(encode(picture, "png", transparency=0))
        assert decoded.getpixel((0, 0)) == WHITE
        assert decoded.getpixel((1, 0)) == BLUE

    def test_a_transparent_colour_in_an_rgb_picture(self):
        picture = Image.new("RGB", (4, 2), BLUE)
        picture.putpixel((0, 0), RED)
        decoded = decode(encode(picture, "png", transparency=RED))
        assert decoded.getpixel((0, 0)) == WHITE
        assert decoded.getpixel((1, 0)) == BLUE

    def test_a_transparent_grey(self):
        picture = Image.new("L", (4, 2), 100)
        picture.putpixel((0, 0), 0)
        decoded = decode(encode(picture, "png", transparency=0))
        assert decoded.getpixel((0, 0)) == WHITE
        assert decoded.getpixel((1, 0)) == (100, 100, 100)

    @pytest.mark.parametrize(("depth", "row"), [(1, b"\x80"), (2, b"\xc0"), (4, b"\xf0")])
    def test_a_transparent_grey_of_few_bits_is_compared_in_stored_samples(self, depth, row):
        highest = (1 << depth) - 1  # the left pixel is white, the right one black; white is transparent
        data = png(
            2,
            1,
            chunk(b"tRNS", highest.to_bytes(2, "big")),
            chunk(b"IDAT", zlib.compress(b"\0" + row)),
            depth=depth,
        )
        decoded = decode(data, background=RED)
        assert decoded.getpixel((0, 0)) == RED
        assert decoded.getpixel((1, 0)) == (0, 0, 0)

    @pytest.mark.parametrize(("colour", "sample"), [(0, b"\x12\x34"), (2, b"\x12\x34\x12\x34\x12\x34")])
    def test_a_transparent_colour_of_sixteen_bits(self, colour, sample):
        other = bytes(len(sample))
        data = png(
            2, 1, chunk(b"tRNS", sample), chunk(b"IDAT", zlib.compress(b"\0" + sample + other)), depth=16, colour=colour
        )
        decoded = decode(data, background=RED)
        assert decoded.getpixel((0, 0)) == RED
        assert decoded.getpixel((1, 0)) == (0, 0, 0)

    def test_a_gif_with_a_transparent_colour(self):
        picture = Image.new("P", (4, 2), 1)
        picture.putpalette([*RED, *BLUE])
        picture.putpixel((0, 0), 0)
        decoded = decode(encode(picture, "gif", transparency=0))
        assert decoded.getpixel((0, 0)) == WHITE
        assert decoded.getpixel((1, 0)) == BLUE


class TestSixteenBits:
    ramp = np.linspace(0, 65535, 64 * 64).astype(np.uint16).reshape(64, 64)

    @pytest.mark.parametrize("kind", ["png", "tiff"])
    def test_grey_is_scaled_not_clipped(self, kind):
        decoded = np.asarray(decode(encode(Image.fromarray(self.ramp), kind)))
        assert abs(decoded.mean() - 127) < 1
        assert (decoded[..., 0] == self.ramp >> 8).all()

    def test_big_endian_tiff(self):
        data = encode(Image.frombytes("I;16B", (64, 64), self.ramp.astype(">u2").tobytes()), "tiff")
        assert data.startswith(b"MM")
        assert (np.asarray(decode(data))[..., 0] == self.ramp >> 8).all()

    def test_white_is_zero_tiff_is_turned_the_right_way(self):
        plain = encode(Image.fromarray(self.ramp), "tiff")
        inverted = plain.replace(b"\x06\x01\x03\0\x01\0\0\0\x01\0", b"\x06\x01\x03\0\x01\0\0\0\0\0")
        assert inverted != plain
        assert (np.asarray(decode(inverted))[..., 0] == 255 - (self.ramp >> 8)).all()

    def test_grey_and_colour_storage_agree(self):
        samples = np.arange(0, 65536, 373, dtype=">u2")
        grey = png(len(samples), 1, chunk(b"IDAT", zlib.compress(b"\0" + samples.tobytes())), depth=16)
        triple = np.repeat(samples, 3).tobytes()
        colour = png(len(samples), 1, chunk(b"IDAT", zlib.compress(b"\0" + triple)), depth=16, colour=2)
        assert largest_difference(decode(grey), decode(colour)) == 0

    @pytest.mark.parametrize("mode", ["I", "F"])
    def test_samples_without_a_stated_range_are_refused_instead_of_guessed(self, mode):
        with pytest.raises(UnsupportedMediaError, match="32-bit"):
            decode(encode(Image.new(mode, (4, 4)), "tiff"))


class TestCmyk:
    def test_adobe_cmyk_is_not_inverted(self):
        image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))  # red ink
        assert largest_difference(decode(encode(image, "jpeg", quality=95)), Image.new("RGB", (16, 16), RED)) <= 3

    def test_ycck(self):
        cmyk = np.full((16, 16, 4), (0, 255, 255, 0), dtype=np.uint8)
        data = simplejpeg.encode_jpeg(np.ascontiguousarray(255 - cmyk), colorspace="CMYK", quality=95)
        assert simplejpeg.decode_jpeg_header(data)[2] == "YCCK"
        assert largest_difference(decode(data), Image.new("RGB", (16, 16), RED)) <= 6

    def test_tiff(self):
        image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
        assert colours(decode(encode(image, "tiff"))) == {RED}


class TestAnimation:
    @pytest.mark.parametrize("kind", ["gif", "webp", "apng", "avif"])
    def test_the_first_frame_is_taken(self, kind):
        options = {"disposal": 2} if kind == "gif" else {"lossless": True} if kind == "webp" else {}
        decoded = decode(animation(kind, **options))
        assert largest_difference(decoded, Image.new("RGB", (16, 12), RED)) <= 2

    @pytest.mark.parametrize("kind", ["gif", "webp", "apng", "avif"])
    def test_or_it_is_refused(self, kind):
        with pytest.raises(UnsupportedMediaError, match="Animated"):
            decode(animation(kind), animated="refuse")

    @pytest.mark.parametrize("kind", FORMATS)
    def test_still_pictures_are_not_taken_for_animated(self, kind):
        assert decode(encode(gradient(), kind), animated="refuse").size == (24, 16)

    def test_many_frames(self):
        data = animation("webp", colours=[(i % 256, 255 - i % 256, 0) for i in range(500)], size=(32, 32))
        assert largest_difference(decode(data), Image.new("RGB", (32, 32), (0, 255, 0))) <= 6

    def test_a_broken_later_frame_does_not_matter(self):
        data = bytearray(animation("gif"))
        second = data.index(b"\x2c", data.index(b"\x2c") + 1)
        data[second + 10 :] = b"\xff" * (len(data) - second - 10)
        assert colours(decode(bytes(data))) == {RED}

    def test_a_file_that_ends_after_its_first_frame(self):
        data = animation("gif")
        second = data.index(b"\x2c", data.index(b"\x2c") + 1)
        assert colours(decode(data[:second])) == {RED}


class TestBroken:
    @pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "bmp", "tiff", "avif"])
    def test_cut_off_data_is_refused_not_half_shown(self, kind):
        data = encode(noise(96, 80), kind)
        with pytest.raises(MediaDecodeError):
            decode(data[: len(data) * 2 // 3])

    def test_a_jpeg_without_its_last_bytes(self):
        data = encode(noise(128, 128), "jpeg")
        with pytest.raises(MediaDecodeError, match="cut off"):
            decode(data[:-128])

    @pytest.mark.parametrize("data", [b"", b"GIF89a", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"BM", b"II*\0"])
    def test_nothing_but_a_beginning(self, data):
        with pytest.raises(MediaDecodeError):
            decode(data)

    def test_a_png_whose_data_is_shorter_than_its_header_says(self):
        with pytest.raises(MediaDecodeError):
            decode(png(600, 600, chunk(b"IDAT", b"x\x9cc\0\0\0\x02\0\x01")))

    def test_a_jpeg_whose_frame_header_lies(self):
        with pytest.raises(MediaTooLargeError):
            decode(with_frame_size(encode(noise(), "jpeg"), 65500, 65500))

    def test_a_jpeg_of_very_many_scans(self):
        data = encode(noise(), "jpeg", progressive=True)
        start = data.index(b"\xff\xda")
        bomb = data[:start] + data[start:-2] * (MAX_JPEG_SCANS + 1) + b"\xff\xd9"
        with pytest.raises(MediaTooLargeError, match="scans"):
            decode(bomb)

    def test_errors_do_not_quote_the_data(self):
        data = bytearray(encode(noise(), "png"))
        at = data.index(b"IDAT")
        data[at : at + 4] = b"SECR"
        with pytest.raises(MediaDecodeError) as caught:
            decode(bytes(data))
        assert "SECR" not in str(caught.value)


class TestRotation:
    @pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "tiff", "avif"])
    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_pixels_are_those_of_exif_transpose(self, kind, orientation):
        exif = Image.Exif()
        exif[274] = orientation
        options = {"lossless": True} if kind == "webp" else {}
        data = encode(gradient(24, 16), kind, exif=exif, **options)
        opened = Image.open(io.BytesIO(data))
        expected = opened.convert("RGB") if kind == "tiff" else ImageOps.exif_transpose(opened.convert("RGB"))
        decoded = decode(data)
        assert decoded.size == ((16, 24) if orientation >= 5 else (24, 16))
        assert largest_difference(decoded, expected) == 0
        if kind in ("png", "webp", "tiff"):
            upright = ImageOps.exif_transpose(_tagged(gradient(24, 16), orientation))
            assert largest_difference(decoded, upright) == 0


class TestMalformedExif:
    broken = b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x1a\x01\x05\0\xff\xff\xff\xff\xff\xff\xff\xff"

    @pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
    def test_it_is_ignored(self, kind):
        exif = self.broken if kind == "jpeg" else self.broken[6:]
        assert decode(encode(gradient(), kind, exif=exif)).size == (24, 16)

    def test_also_where_pillow_decodes_the_jpeg(self):
        assert decode(encode(gradient().convert("CMYK"), "jpeg", exif=self.broken)).size == (24, 16)

    @pytest.mark.filterwarnings("ignore::UserWarning")  # as `codecs` does for the process; pytest takes that back
    def test_in_avif_the_container_says_the_rotation(self):
        exif = Image.Exif()
        exif[270], exif[274] = "A MARKER TO FIND IT", 6
        data = encode(gradient(24, 16), "avif", exif=exif)
        start = data.rindex(b"\0*", 0, data.index(b"A MARKER")) - 2
        damaged = data[:start] + b"II*\0\xff\xff\xff\xff" + data[start + 8 :]
        assert largest_difference(decode(damaged), decode(data)) == 0


def _tagged(image, orientation):
    image = image.copy()
    image.getexif()[274] = orientation
    return image
