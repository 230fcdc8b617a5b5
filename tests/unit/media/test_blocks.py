"""Memory that a process writes results into and its owner reads, both sides in this process."""

import gc
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from chiasm.media.isolation.blocks import BLOCK_BYTES, NUM_BLOCKS, BorrowedBlocks, LentBlocks


def num_mapped():
    return Path("/proc/self/maps").read_text().count("memfd:chiasm-decoder")


@pytest.fixture
def sides():
    lent = LentBlocks()
    owners = BorrowedBlocks(os.dup(lent.descriptor))
    lent.close()
    return lent, owners


def test_what_one_side_writes_the_other_reads(sides):
    lent, owners = sides
    number = lent.take()
    owners.use(number)
    first, second = owners.place((100, 300)), owners.place((20_001,))
    first[...], second[...] = 3, 4
    made = np.arange(9000, dtype=np.int32)
    offsets = [owners.offset(each) for each in (first, second, made)]
    assert offsets == [0, 30_016, 50_048]
    heads = [("|u1", (100, 300), offsets[0]), ("|u1", (20_001,), offsets[1]), ("<f4", (3,), None)]
    got = lent.arrays(number, [*heads, ("<i4", (9000,), offsets[2])])
    assert (got[0] == 3).all()
    assert (got[1] == 4).all()
    assert got[2] is None
    assert (got[3] == made).all()


def test_a_block_comes_back_with_its_last_array(sides):
    lent, _ = sides
    number = lent.take()
    first, second = lent.arrays(number, [("|u1", (5, 5), 0), ("<f4", (9,), 64)])
    view = first[2:].reshape(-1).view(np.int8)
    del first
    assert lent.num_free == NUM_BLOCKS - 1
    del second
    assert lent.num_free == NUM_BLOCKS - 1
    del view
    gc.collect()
    assert lent.num_free == NUM_BLOCKS
    assert lent.take() == number  # its memory is there already


def test_there_are_so_many_blocks_and_no_more(sides):
    lent, owners = sides
    taken = [lent.take() for _ in range(NUM_BLOCKS)]
    assert sorted(taken) == list(range(NUM_BLOCKS))
    assert lent.take() is None
    lent.give_back(taken[0])
    assert lent.take() == taken[0]
    owners.use(None)
    assert owners.place((20_000,)) is None
    assert owners.offset(np.zeros(20_000, np.uint8)) is None


def test_what_does_not_fit_or_is_small_has_no_place(sides):
    _, owners = sides
    owners.use(0)
    assert owners.place((100,)) is None
    assert owners.place((BLOCK_BYTES + 1,)) is None
    assert owners.place((BLOCK_BYTES - 20_000,)) is not None
    assert owners.place((30_000,)) is None
    assert owners.offset(np.zeros(30_000, np.uint8)) is None
    owners.use(0)
    assert owners.place((BLOCK_BYTES,)) is not None


@pytest.mark.parametrize(
    ("dtype", "shape", "offset"),
    [
        ("|u1", (64,), BLOCK_BYTES),
        ("<f8", (BLOCK_BYTES // 8,), 64),
        ("|u1", (8,), 1),
        ("|u1", (0,), 0),
        ("<f8", (2**40, 2**20), 0),
    ],
)
def test_arrays_outside_of_a_block_are_refused(sides, dtype, shape, offset):
    lent, _ = sides
    with pytest.raises(ValueError, match="outside"):
        lent.arrays(lent.take(), [("|u1", (64,), 0), (dtype, shape, offset)])


def test_the_process_cannot_take_memory_away():
    lent = LentBlocks()
    for size in (0, BLOCK_BYTES * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(lent.descriptor, size)
    lent.close()


def test_nothing_is_left_when_both_sides_are_gone(sides):
    gc.collect()
    before = num_mapped()
    lent = LentBlocks()
    [kept] = lent.arrays(lent.take(), [("|u1", (64,), 0)])
    lent.close()
    lent.unmap()
    assert num_mapped() == before + 1  # an array lies in it
    kept[0] = 9
    del kept
    assert num_mapped() == before


def test_a_want_of_memory_leaves_no_descriptor_behind(monkeypatch):
    made = []
    create = os.memfd_create

    def noted(*arguments):
        made.append(create(*arguments))
        return made[-1]

    def scarce(*arguments):
        raise OSError("no memory")

    monkeypatch.setattr(os, "memfd_create", noted)
    monkeypatch.setattr(mmap, "mmap", scarce)
    with pytest.raises(OSError, match="no memory"):
        LentBlocks()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0])
