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


@pytest.fixture
def retired():
    return []


@pytest.fixture
def book(clock, retired):
    return OfferBook(100, retired.append, clock)


def test_an_offer_is_found_until_it_expires(book, clock, retired):
    book.add("a", "value", 10, clock.now + 5)
    assert book.find("a").value == "value"
    clock.now += 5
    assert book.find("a") is None
    assert len(book) == 0
    assert retired == ["value"]


def test_the_quota_counts_what_has_not_expired(book, clock, retired):
    book.add("a", "a", 60, clock.now + 5)
    book.make_room(40)
    with pytest.raises(OverloadedError, match="60 of 100"):
        book.make_room(41)
    clock.now += 5
    book.make_room(100)
    assert retired == ["a"]


def test_what_has_expired_is_retired_within_a_second_of_use(book, clock, retired):
    book.make_room(1)
    book.add("a", "a", 1, clock.now)
    book.make_room(1)
    assert not retired
    clock.now += SWEEP_INTERVAL_S
    book.make_room(1)
    assert retired == ["a"]


@given(
    st.lists(
        st.tuples(st.sampled_from("pdsc"), st.sampled_from("abcde"), st.integers(0, 120), st.integers(1, 20)),
        max_size=60,
    )
)
def test_everything_added_is_retired_once_and_bytes_never_exceed_the_quota(steps):
    clock, retired, added = Clock(), [], []
    book = OfferBook(100, retired.append, clock)
    for kind, key, size, ttl in steps:
        if kind == "p":
            book.remove(key)
            try:
                book.make_room(size)
            except OverloadedError:
                continue
            added.append(object())
            book.add(key, added[-1], size, clock.now + ttl)
        elif kind == "d":
            book.remove(key)
        elif kind == "s":
            book.sweep()
        clock.now += 1
        live = {key: offer for key in "abcde" if (offer := book.find(key))}
        assert sum(offer.num_bytes for offer in live.values()) <= 100
        assert len(book) == len(live)
    book.clear()
    assert len(retired) == len(added)
    assert set(retired) == set(added)
    book.make_room(100)


@pytest.mark.parametrize(("first", "second"), [(b"ab", b"ac"), (b"ab", b"a"), (b"", b"a")])
def test_bytes_are_compared_by_length_and_content(first, second):
    assert is_equal(first, memoryview(bytes(first)))
    assert not is_equal(first, second)
