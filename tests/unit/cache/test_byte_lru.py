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


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_is_removed_is_found_no_more_and_goes_when_it_is_let_go_of():
    lru: ByteLru[str] = ByteLru(100, 100)
    lru.put_held("a", "a", 5)
    assert not lru.remove("a")
    assert lru.hold("a") is None
    assert lru.get("a") == lru.share("a") == "a"
    lru.release("a")
    assert len(lru) == 1
    lru.release("a")
    assert (len(lru), lru.used_bytes, lru.held_bytes) == (0, 0, 0)
    assert not lru.remove("a")
    lru.put_held("a", "a", 5)
    lru.release("a")
    assert lru.remove("a")


def test_what_is_put_again_while_the_removed_one_is_held_is_found_again():
    lru: ByteLru[str] = ByteLru(100, 100)
    lru.put_held("a", "first", 5)
    lru.remove("a")
    lru.put_held("a", "second", 5)
    assert lru.hold("a") == "first"
    for _ in range(3):
        lru.release("a")
    assert (len(lru), lru.used_bytes) == (1, 5)


def test_an_entry_is_found_until_its_time_is_over_however_often_it_is_used():
    clock = Clock()
    lru: ByteLru[str] = ByteLru(100, 100, ttl_s=10.0, clock=clock)
    lru.put_held("used", "used", 5)
    lru.put_held("idle", "idle", 5)
    lru.release("idle")
    for _ in range(9):
        clock.now += 1
        assert lru.hold("used") == "used"
        lru.release("used")
    clock.now += 1
    assert lru.hold("used") is None
    assert lru.hold("idle") is None
    lru.expire()
    assert [key for key, _ in lru.items()] == ["used"]
    assert lru.get("used") == "used"
    lru.release("used")
    assert (len(lru), lru.used_bytes, lru.held_bytes) == (0, 0, 0)


def test_what_is_made_anew_lives_as_long_again():
    clock = Clock()
    lru: ByteLru[str] = ByteLru(100, 100, ttl_s=10.0, clock=clock)
    lru.put_held("a", "a", 5)
    clock.now += 9
    lru.put_held("a", "a", 5)
    clock.now += 1
    assert lru.hold("a") is None
    lru.put_held("a", "a", 5)
    clock.now += 9
    assert lru.hold("a") == "a"


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
