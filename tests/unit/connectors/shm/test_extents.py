from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from chiasm.connectors.shm.extents import Extents

UNIT = 16


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 200)), max_size=80))
def test_ranges_in_use_never_overlap_and_what_is_given_back_becomes_one_range_again(steps):
    extents, taken = Extents(64 * UNIT, UNIT), []
    for is_take, value in steps:
        if is_take:
            offset = extents.take(value)
            if offset is not None:
                taken.append((offset, value))
        elif taken:
            extents.give_back(*taken.pop(value % len(taken)))
        used = sorted((offset, offset + units(size)) for offset, size in taken)
        assert all(end <= start for (_, end), (start, _) in pairwise(used))
        assert all(start >= 0 and end <= 64 * UNIT for start, end in used)
        assert extents.num_free_bytes == 64 * UNIT - sum(end - start for start, end in used)
    for entry in taken:
        extents.give_back(*entry)
    assert extents.take(64 * UNIT) == 0


def units(size):
    return max(1, -(-size // UNIT)) * UNIT


def test_the_first_gap_that_is_wide_enough_is_used():
    extents = Extents(10 * UNIT, UNIT)
    offsets = [extents.take(2 * UNIT) for _ in range(4)]
    extents.give_back(offsets[0], 2 * UNIT)
    extents.give_back(offsets[2], 2 * UNIT)
    assert extents.take(3 * UNIT) is None
    assert extents.take(1) == offsets[0]
    assert extents.take(2 * UNIT) == offsets[2]


def test_nothing_is_returned_when_all_is_in_use():
    extents = Extents(2 * UNIT, UNIT)
    assert extents.take(2 * UNIT) == 0
    assert extents.take(1) is None
