import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chiasm.connectors.shm import arena
from chiasm.errors import TransferError

NAME = "chiasm-1000-77-0123456789abcdef"


@given(st.integers(0, 10**7 - 1), st.integers(0, 10**19 - 1))
def test_an_address_is_read_as_it_was_written(slot, generation):
    assert arena.parse_address(arena.format_address(NAME, slot, generation)) == (NAME, slot, generation)


@pytest.mark.parametrize(
    "text",
    [
        "",
        NAME,
        f"{NAME}/1",
        f"{NAME}/1/2/3",
        f"{NAME}/1/2\n",
        f"/{NAME}/1/2",
        f"../{NAME}/1/2",
        f"{NAME}/../2",
        f"{NAME}/-1/2",
        f"{NAME}/١/2",
        "chiasm-1000-77-0123456789abcdeg/1/2",
        f"{NAME}0/1/2",
    ],
)
def test_other_words_are_no_address(text):
    with pytest.raises(TransferError):
        arena.parse_address(text)


def test_slots_do_not_touch_each_other_or_the_data():
    memory = mmap.mmap(-1, arena.data_start(100))
    arena.write_head(memory, 100)
    assert arena.read_head(memory) == 100
    slots = [(n + 1, 2**40 + n, n, n + 0.5) for n in range(100)]
    for number, slot in enumerate(slots):
        arena.write_slot(memory, number, *slot)
    arena.clear_slot(memory, 3)
    arena.renew_slot(memory, 4, 99.0)
    slots[3] = (0, *slots[3][1:])
    slots[4] = (*slots[4][:3], 99.0)
    assert [arena.read_slot(memory, number) for number in range(100)] == slots


@pytest.mark.parametrize("head", [b"", b"chiasmA2" + bytes([1]), b"chiasmA1" + b"\xff" * 8])
def test_a_file_of_another_layout_is_refused(head):
    memory = mmap.mmap(-1, 8192)
    memory[: len(head)] = head
    with pytest.raises(TransferError):
        arena.read_head(memory)
