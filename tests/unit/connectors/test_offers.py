from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chiasm.connectors.offers import SWEEP_INTERVAL_S, OfferBook, is_equal
from chiasm.errors import OverloadedError


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


class Shelf:
    """Keeps bytes in objects of their own, of which anything can be said."""

    class Place:
        def __init__(self, data, expires_at):
            self.data, self.expires_at, self.is_released = data, expires_at, False

    def __init__(self):
        self.placed, self.retired = [], []

    def place(self, key, data, expires_at):
        self.placed.append(self.Place(bytes(data), expires_at))
        return self.placed[-1]

    def holds(self, value, data):
        return value.data == bytes(data)

    def renew(self, value, data, expires_at):
        value.expires_at = expires_at

    def is_released(self, value):
        return value.is_released

    def retire(self, value):
        self.retired.append(value)


@pytest.fixture
def shelf():
    return Shelf()


@pytest.fixture
def book(clock, shelf):
    return OfferBook(100, shelf, clock)


def test_an_offer_is_found_until_it_expires(book, clock, shelf):
    place = book.put("a", b"value", 5)
    assert book.find("a").value is place
    assert place.expires_at == clock.now + 5
    clock.now += 5
    assert book.find("a") is None
    assert len(book) == 0
    assert shelf.retired == [place]


def test_the_same_bytes_are_renewed_and_others_replace_them(book, clock, shelf):
    first = book.put("a", b"same", 5)
    clock.now += 4
    assert book.put("a", b"same", 5) is first
    assert first.expires_at == clock.now + 5
    clock.now += 4
    assert book.find("a").value is first
    second = book.put("a", b"other", 5)
    assert second is not first
    assert shelf.retired == [first]
    assert len(book) == 1


def test_the_quota_counts_what_is_still_on_offer(book, clock, shelf):
    first = book.put("a", bytes(60), 5)
    book.put("b", bytes(40), 50)
    with pytest.raises(OverloadedError, match="100 of 100"):
        book.put("c", b"1", 5)
    clock.now += 5
    third = book.put("c", bytes(60), 50)
    assert shelf.retired == [first]
    third.is_released = True
    book.put("d", bytes(60), 50)
    assert shelf.retired == [first, third]


def test_what_has_ended_is_retired_within_a_second_of_use(book, clock, shelf):
    expired, released = book.put("a", b"a", 0.5), book.put("b", b"b", 50)
    released.is_released = True
    book.put("c", b"c", 50)
    assert not shelf.retired
    clock.now += SWEEP_INTERVAL_S
    book.put("d", b"d", 50)
    assert shelf.retired == [expired, released]


@given(
    st.lists(
        st.tuples(st.sampled_from("pdrsc"), st.sampled_from("abcde"), st.integers(0, 120), st.integers(1, 20)),
        max_size=60,
    )
)
def test_everything_placed_is_retired_once_and_bytes_never_exceed_the_quota(steps):
    clock, shelf = Clock(), Shelf()
    book = OfferBook(100, shelf, clock)
    for kind, key, size, ttl in steps:
        offer = book.find(key)
        if kind == "p":
            with suppress(OverloadedError):
                book.put(key, bytes(size), ttl)
        elif kind == "d":
            book.remove(key)
        elif kind == "r" and offer is not None:
            offer.value.is_released = True
        elif kind == "s":
            book.sweep()
        clock.now += 1
        held = [place for place in shelf.placed if place not in shelf.retired]
        assert sum(len(place.data) for place in held) <= 100
        live = [offer for key in "abcde" if (offer := book.find(key)) and not offer.value.is_released]
        assert len(book) == len(live)
    book.clear()
    assert len(shelf.retired) == len(shelf.placed)
    assert set(shelf.retired) == set(shelf.placed)
    book.put("all", bytes(100), 1)


@pytest.mark.parametrize(("first", "second"), [(b"ab", b"ac"), (b"ab", b"a"), (b"", b"a")])
def test_bytes_are_compared_by_length_and_content(first, second):
    assert is_equal(first, memoryview(bytes(first)))
    assert not is_equal(first, second)
