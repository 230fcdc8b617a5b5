import pytest
from hypothesis import given
from hypothesis import strategies as st

from chiasm.cache.byte_lru import ByteLru
from chiasm.errors import OverloadedError


def test_unheld_entries_leave_least_recently_used_first():
    lru: ByteLru[str] = ByteLru(20, 100)
    for key in "abc":
        lru.put_held(key, key, 10)
        lru.release(key)
    assert lru.get("a") is None
    assert lru.get("b") == "b"
    assert lru.num_evicted == 1


def test_held_entries_stay_whatever_comes():
    lru: ByteLru[str] = ByteLru(10, 100)
    lru.put_held("a", "a", 10)
    lru.put_held("b", "b", 10)
    assert lru.get("a") == "a"
    lru.release("a")
    assert lru.get("a") is None


def test_too_much_held_is_refused_and_an_entry_alone_always_fits():
    lru: ByteLru[str] = ByteLru(10, 30)
    lru.put_held("huge", "x", 1000)
    with pytest.raises(OverloadedError):
        lru.put_held("b", "b", 1)
    lru.release("huge")
    lru.put_held("b", "b", 1)
    assert len(lru) == 1


def test_a_second_put_keeps_the_value_and_adds_a_holder():
    lru: ByteLru[str] = ByteLru(0, 100)
    lru.put_held("a", "first", 5)
    lru.put_held("a", "second", 5)
    lru.release("a")
    assert lru.get("a") == "first"
    lru.release("a")
    assert lru.get("a") is None


def test_removing_spares_what_is_held():
    lru: ByteLru[str] = ByteLru(100, 100)
    lru.put_held("a", "a", 5)
    assert not lru.remove("a")
    lru.release("a")
    assert lru.remove("a")
    assert not lru.remove("a")


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.booleans()), max_size=80))
def test_bytes_add_up(operations):
    lru: ByteLru[str] = ByteLru(25, 1000)
    holds: list[str] = []
    for key, is_put in operations:
        if is_put:
            lru.put_held(key, key, 10)
            holds.append(key)
        elif holds:
            lru.release(holds.pop())
        assert lru.held_bytes == 10 * len(set(holds)) == 10 * lru.num_held
        assert lru.used_bytes == 10 * len(lru)
        assert lru.used_bytes <= max(25, lru.held_bytes)
