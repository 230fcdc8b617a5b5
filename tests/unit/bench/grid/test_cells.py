"""Which cells a grid has, and in which order they are measured."""

import msgspec

from chiasm.bench.grid.cells import all_cells, in_balance, request_class
from tests.unit.bench.grid.runs import CELL, GRID

CELLS = all_cells(GRID)


def test_sizes_of_pictures_mean_nothing_without_pictures():
    assert len(CELLS) == 81
    assert len({cell for cell in CELLS if not cell.kind.images}) == 9


def test_warm_caches_are_cells_of_their_own_and_only_with_pictures():
    both = all_cells(msgspec.structs.replace(GRID, caches=("cold", "warm")))
    assert len(both) == 81 + 72
    assert {cell.kind.cache for cell in both if not cell.kind.images} == {"cold"}


def test_every_start_of_the_order_covers_all_levels_evenly():
    order = in_balance(CELLS, 0)
    assert sorted(map(str, order)) == sorted(map(str, CELLS))
    for length in (15, 30, 45):
        for factor in ("output", "load"):
            seen = [cell.levels[factor] for cell in order[:length]]
            counts = [seen.count(level) for level in set(seen)]
            assert len(counts) == 3
            assert max(counts) - min(counts) <= 2
        assert {cell.kind.images for cell in order[:length]} == {0, 1, 2, 4, 8}
    assert in_balance(CELLS, 0) == order
    assert in_balance(CELLS, 1) != order


def test_a_kind_says_what_its_requests_are():
    one = request_class(CELL.kind, GRID)
    assert (one.images, one.image_size, one.output_tokens) == (2, (256, 256), 16)
    assert str(CELL) == "2 x 64 tokens, output 16, load 0.6"
