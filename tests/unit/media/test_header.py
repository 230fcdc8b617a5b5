import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from chiasm.errors import MediaDecodeError, MediaTooLargeError, UnsupportedMediaError
from chiasm.media.picture.header import Header, peek_header, read_header
from chiasm.media.picture.jpeg import without_exif
from chiasm.media.picture.limits import check_header
from chiasm.settings import MediaSettings
from tests.unit.media.pictures import (
    FORMATS,
    animation,
    chunk,
    encode,
    exif_block,
    gradient,
    png,
    uniform_png,
    with_frame_size,
    without_chunk,
)


def with_exif(jpeg, block):
    return jpeg[:2] + b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block + jpeg[2:]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("size", [(1, 1), (24, 16), (301, 17), (64, 300)])
def test_the_size_is_what_was_encoded(kind, size):
    header = read_header(encode(gradient(*size), kind))
    assert (header.format, header.width, header.height) == (kind, *size)
    assert (header.orientation, header.is_animated) == (1, False)


@pytest.mark.parametrize("options", [{"lossless": True}, {"exif": exif_block(1)[6:]}, {"quality": 10}])
def test_all_three_kinds_of_webp(options):
    assert read_header(encode(gradient(301, 17), "webp", **options)).width == 301


def test_the_first_frame_of_a_gif_may_be_larger_than_its_screen():
    data = bytearray(encode(gradient(40, 30), "gif"))
    data[6:10] = (8).to_bytes(2, "little") * 2
    header = read_header(data)
    assert (header.width, header.height) == (40, 30)


@pytest.mark.parametrize("height", [-12, 12])
def test_a_bmp_may_run_from_the_top(height):
    data = bytearray(encode(gradient(16, 12), "bmp"))
    data[22:26] = height.to_bytes(4, "little", signed=True)
    assert read_header(data).height == 12


def test_run_length_encoded_bmp_is_refused():
    data = bytearray(encode(gradient().convert("P"), "bmp"))
    data[30] = 1
    with pytest.raises(UnsupportedMediaError, match="Run-length"):
        read_header(data)


def test_multi_picture_files_are_read_as_their_first_picture():
    data = encode(gradient(32, 20), "mpo", save_all=True, append_images=[Image.new("RGB", (8, 8))])
    header = read_header(data)
    assert (header.format, header.width, header.height, header.is_animated) == ("jpeg", 32, 20, False)


class TestOrientation:
    @pytest.mark.parametrize("order", ["little", "big"])
    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_turned_pictures_have_their_sides_swapped(self, orientation, order):
        header = read_header(with_exif(encode(gradient(24, 16), "jpeg"), exif_block(orientation, order)))
        assert header.orientation == orientation
        assert (header.width, header.height) == ((16, 24) if orientation >= 5 else (24, 16))

    @pytest.mark.parametrize("orientation", [0, 9, 65535])
    def test_undefined_values_are_ignored(self, orientation):
        assert read_header(with_exif(encode(gradient(), "jpeg"), exif_block(orientation))).orientation == 1

    @pytest.mark.parametrize(
        "block",
        [
            b"Exif\0\0",
            b"Exif\0\0garbage",
            exif_block(6)[:-12],
            b"Exif\0\0II*\0\xff\xff\xff\xff",
            b"Exif\0\0MM\0*\0\0\0\x08\xff\xff",
        ],
    )
    @pytest.mark.parametrize("kind", ["jpeg", "png"])
    def test_malformed_exif_is_ignored(self, kind, block):
        data = encode(gradient(), kind)
        data = with_exif(data, block) if kind == "jpeg" else data[:33] + chunk(b"eXIf", block[6:]) + data[33:]
        header = read_header(data)
        assert (header.width, header.height, header.orientation) == (24, 16, 1)

    def test_exif_after_the_pixels_of_a_png_counts(self):
        rest, block = without_chunk(encode(gradient(), "png", exif=exif_block(6)[6:]), b"eXIf")
        end = rest.index(b"IEND") - 4
        assert read_header(rest[:end] + block + rest[end:]).orientation == 6

    def test_only_the_first_exif_block_of_a_jpeg_counts(self):
        data = with_exif(with_exif(encode(gradient(), "jpeg"), exif_block(3)), exif_block(6))
        assert read_header(data).orientation == 6

    def test_hidden_exif_leaves_all_else_alone(self):
        plain = encode(gradient(), "jpeg")
        hidden = without_exif(with_exif(plain, exif_block(6)))
        assert read_header(hidden).orientation == 1
        assert hidden.endswith(plain[2:])


class TestAnimation:
    @pytest.mark.parametrize("kind", ["gif", "webp", "apng", "avif"])
    def test_two_frames_are_an_animation(self, kind):
        assert read_header(animation(kind)).is_animated

    def test_one_frame_is_not(self):
        assert not read_header(animation("gif", colours=[(255, 0, 0)])).is_animated


class TestPrefix:
    @pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "gif", "bmp"])
    def test_the_size_is_known_from_the_first_kilobyte(self, kind):
        header = peek_header(encode(gradient(500, 400), kind)[:1024])
        assert header is not None
        assert (header.width, header.height) == (500, 400)

    @pytest.mark.parametrize("kind", FORMATS)
    def test_no_prefix_is_an_error_and_none_is_wrong(self, kind):
        data = encode(gradient(), kind)
        for length in range(len(data)):
            header = peek_header(data[:length])
            assert header is None or (header.width, header.height) == (24, 16)

    def test_what_is_no_picture_is_known_at_once(self):
        with pytest.raises(UnsupportedMediaError, match="HTML"):
            peek_header(b"<!DOCTYPE html><html><head><title>Not found</title>")


class TestMalformed:
    @pytest.mark.parametrize(
        "data",
        [
            png(0, 10),
            png(10, 0),
            b"\x89PNG\r\n\x1a\n" + chunk(b"IEND", bytes(20)),
            with_frame_size(encode(gradient(), "jpeg"), 0, 0),
            b"\xff\xd8\xff\xd9" + bytes(40),
            b"\xff\xd8\xff\xe0\0\1" + bytes(40),
            b"\xff\xd8" + b"\xff\xe0\0\2" * 20_000,
            b"\xff\xd8" + b"\xff" * 20_000,
            b"\xff\xd8\xff\xe0\0\2" + bytes(20_000) + b"\xff\xe0\0\2",
            b"GIF89a" + bytes(7) + b"\x21\xfe\0" * 2000,
            b"GIF89a" + bytes(7) + b";",
            b"II*\0\x08\0\0\0\0\0\0\0",
            b"RIFF\0\0\0\0WEBPJUNK" + bytes(40),
            b"RIFF\0\0\0\0WEBPVP8 " + bytes(40),
            b"BM" + bytes(12) + b"\x09\0\0\0" + bytes(40),
            b"\0\0\0\x20ftypavif" + bytes(40),
        ],
    )
    def test_malformed_headers_are_decode_errors(self, data):
        with pytest.raises(MediaDecodeError):
            read_header(data)

    def test_a_walk_over_very_many_parts_ends(self):
        with pytest.raises(MediaDecodeError, match="parts"):
            read_header(png(4, 4, chunk(b"teXt") * 60_000))

    def test_tiff_tiles_far_larger_than_the_picture(self):
        entries = [(256, 8), (257, 8), (322, 60_000), (323, 60_000)]
        body = b"".join(
            tag.to_bytes(2, "little") + b"\4\0\1\0\0\0" + value.to_bytes(4, "little") for tag, value in entries
        )
        with pytest.raises(MediaDecodeError, match="tiles"):
            read_header(b"II*\0\x08\0\0\0\4\0" + body + bytes(4))

    @settings(deadline=None)
    @given(st.binary(max_size=200), st.sampled_from(FORMATS))
    def test_random_bytes_after_a_true_beginning(self, tail, kind):
        data = encode(gradient(4, 4), kind)[:20] + tail
        try:
            header = read_header(data)
        except (MediaDecodeError, UnsupportedMediaError):
            return
        assert header.width >= 1
        assert header.height >= 1


class TestLimits:
    def header(self, width, height, **options):
        return Header(format="png", stored_width=width, stored_height=height, **options)

    @pytest.mark.parametrize("data", [uniform_png(20_000, 20_000), png(40_000, 40_000), png(2**31, 2**31)])
    def test_bombs_are_refused_from_their_header(self, data):
        with pytest.raises(MediaTooLargeError, match="pixels"):
            check_header(read_header(data), MediaSettings())

    def test_a_rewritten_jpeg_frame(self):
        header = read_header(with_frame_size(encode(gradient(), "jpeg"), 65500, 65500))
        with pytest.raises(MediaTooLargeError, match="4290250000"):
            check_header(header, MediaSettings())

    def test_exactly_at_the_limit(self):
        settings = MediaSettings(max_item_pixels=100, max_aspect_ratio=4)
        check_header(self.header(20, 5), settings)
        with pytest.raises(MediaTooLargeError, match="101"):
            check_header(self.header(101, 1), settings)
        with pytest.raises(MediaTooLargeError, match="sides"):
            check_header(self.header(21, 4), settings)

    def test_animated_pictures_by_policy(self):
        header = self.header(4, 4, is_animated=True)
        check_header(header, MediaSettings())
        with pytest.raises(UnsupportedMediaError):
            check_header(header, MediaSettings(animated="refuse"))
