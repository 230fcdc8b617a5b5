"""The search for goodput finds the edge, and says when there is none."""

import pytest

from chiasm.bench.search import Trial, find_goodput
from chiasm.errors import EngineError


def _server(edge_per_s, tried, *, is_stable=True):
    async def evaluate(rate_per_s):
        tried.append(rate_per_s)
        return Trial(rate_per_s=rate_per_s, attainment=0.95 if rate_per_s <= edge_per_s else 0.5, is_stable=is_stable)

    return evaluate


@pytest.mark.parametrize("start", [0.5, 3.0, 40.0])
@pytest.mark.parametrize("edge", [2.2, 7.0, 23.0])
async def test_the_edge_is_found_from_any_start(start, edge):
    tried = []
    found = await find_goodput(_server(edge, tried), start)
    assert found.goodput_per_s <= edge <= found.first_bad_per_s
    assert found.goodput_per_s == pytest.approx(edge, rel=0.06)
    assert len(tried) == len(found.trials) < 16
    assert [trial.rate_per_s for trial in found.trials] == sorted(tried)


async def test_unstable_rates_are_not_good_whatever_they_attained():
    assert (await find_goodput(_server(10, [], is_stable=False), 1.0)).goodput_per_s == 0


async def test_a_server_that_never_meets_the_limits_has_none():
    tried = []
    found = await find_goodput(_server(0, tried), 8.0)
    assert found.goodput_per_s == 0
    assert len(tried) < 12


async def test_a_server_that_always_does_is_told():
    with pytest.raises(EngineError, match="still meet"):
        await find_goodput(_server(1e30, []), 1.0)
