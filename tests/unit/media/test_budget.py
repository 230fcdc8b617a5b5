import math

import pytest

from chiasm.errors import MediaRefusedError, MediaTooLargeError, UnsupportedMediaError
from chiasm.media.budget import EarlyLook, RequestBudget
from chiasm.media.picture.header import Header
from chiasm.media.prepare.base import ImagePlan
from chiasm.settings import MediaSettings
from tests.unit.media.pictures import animation, encode, gradient, png


def header(width, height):
    return Header(format="png", stored_width=width, stored_height=height)


def test_bytes_of_all_references_are_summed_and_restated():
    budget = RequestBudget(MediaSettings(max_request_bytes=100), None, [1, 1])
    budget.take_bytes(0, 60)
    budget.take_bytes(1, 40)
    budget.take_bytes(0, 50)
    with pytest.raises(MediaTooLargeError, match="101 bytes"):
        budget.take_bytes(1, 51)


def test_pixels_count_once_per_reference():
    budget = RequestBudget(MediaSettings(max_request_pixels=100), None, [3, 1])
    budget.take_picture(0, header(8, 8))
    budget.take_picture(0, header(8, 8))
    budget.take_picture(1, header(6, 6))
    with pytest.raises(MediaTooLargeError, match="106 pixels together; the limit is 100"):
        budget.take_picture(1, header(6, 7))


def test_tokens_count_once_per_place(preparer):
    budget = RequestBudget(MediaSettings(max_visual_tokens=100), preparer, [3, 1])
    budget.take_picture(0, header(5, 6))
    budget.take_picture(1, header(2, 5))
    with pytest.raises(MediaTooLargeError, match="102 visual tokens; the limit is 100"):
        budget.take_picture(1, header(2, 6))


def test_sizes_that_the_model_cannot_take(preparer):
    with pytest.raises(MediaRefusedError, match="13"):
        RequestBudget(MediaSettings(), preparer, [1]).take_picture(0, header(13, 8))


def test_without_a_preparer_tokens_are_not_limited():
    RequestBudget(MediaSettings(max_visual_tokens=1), None, [1]).take_picture(0, header(100, 100))


class TilesOfTen:
    """Cuts pictures into squares of ten pixels, of one token each."""

    def plan(self, width, height):
        tiles = max(height // 10, 1), max(width // 10, 1)
        size = {"width": width, "height": height, "resized": (width, height)}
        return ImagePlan(num_embeddings=math.prod(tiles), num_prompt_tokens=math.prod(tiles), tiles=tiles, **size)


def test_tiles_of_one_picture():
    budget = RequestBudget(MediaSettings(max_item_tiles=6), TilesOfTen(), [1])
    budget.take_picture(0, header(30, 20))
    with pytest.raises(MediaTooLargeError, match="this picture into 8 tiles; the limit is 6"):
        budget.take_picture(0, header(40, 20))


def test_tiles_count_once_per_reference_and_not_of_pictures_that_are_not_cut():
    budget = RequestBudget(MediaSettings(max_request_tiles=10), TilesOfTen(), [5, 1, 1])
    budget.take_picture(0, header(30, 20))
    budget.take_picture(1, header(10, 10))
    budget.take_picture(2, header(20, 20))
    with pytest.raises(MediaTooLargeError, match="into 12 tiles together; the limit is 10"):
        budget.take_picture(1, header(20, 10))
    budget.give_back(2)
    budget.take_picture(1, header(20, 10))


class TestEarlyLook:
    def look(self, settings, preparer=None):
        return EarlyLook(RequestBudget(settings, preparer, [1]), 0)

    def test_a_bomb_is_refused_by_its_first_bytes(self):
        with pytest.raises(MediaTooLargeError, match="1600000000"):
            self.look(MediaSettings())(bytearray(png(40_000, 40_000)[:64]))

    def test_tokens_are_known_before_the_last_byte(self, preparer):
        prefix = bytearray(encode(gradient(400, 300), "jpeg")[:1024])
        with pytest.raises(MediaTooLargeError, match="120000 visual tokens"):
            self.look(MediaSettings(), preparer)(prefix)

    def test_tiles_are_known_before_the_last_byte(self):
        prefix = bytearray(encode(gradient(400, 300), "jpeg")[:1024])
        with pytest.raises(MediaTooLargeError, match="1200 tiles"):
            self.look(MediaSettings(), TilesOfTen())(prefix)

    def test_an_error_page_is_refused_at_once(self):
        with pytest.raises(UnsupportedMediaError, match="HTML"):
            self.look(MediaSettings())(bytearray(b"<!doctype html><html><body>404 not found</body>"))

    def test_animations_by_policy(self):
        with pytest.raises(UnsupportedMediaError, match="Animated"):
            self.look(MediaSettings(animated="refuse"))(bytearray(animation("webp")))

    def test_it_looks_at_growing_data_only_now_and_then(self, monkeypatch):
        looks = []
        monkeypatch.setattr("chiasm.media.budget.peek_header", lambda prefix: looks.append(len(prefix)))
        look = self.look(MediaSettings())
        for length in range(1, 10_000):
            look(bytearray(length))
        assert looks == [2**n for n in range(14)]

    def test_bytes_are_counted_at_every_step(self):
        look = self.look(MediaSettings(max_request_bytes=100))
        look(bytearray(b"\x89PNG\r\n\x1a\n" + bytes(12)))
        with pytest.raises(MediaTooLargeError, match="101 bytes"):
            look(bytearray(101))
