import pytest

from chiasm.simulator.caches import TokenCache
from chiasm.simulator.calibration import Calibration, Cost
from chiasm.simulator.cluster import aggregated, disaggregated
from chiasm.simulator.run import simulate
from chiasm.simulator.traffic import Picture, Request, RequestClass, Traffic

TRAFFIC = Traffic(classes=(RequestClass(num_images=1, repeat_share=0.5),))
COSTS = {
    "encode": Cost(fixed_s=1.0),
    "prefill": Cost(per_unit_s=0.01),
    "step": Cost(fixed_s=0.1),
    "max_step_tokens": 4096,
}


def test_what_was_used_longest_ago_leaves_first():
    cache = TokenCache(10)
    for name in "abc":
        cache.keep(name, 4)
    assert [cache.has(name) for name in "abc"] == [False, True, True]
    cache.has("b")
    cache.keep("d", 4)
    assert [cache.has(name) for name in "bcd"] == [True, False, True]
    assert (cache.used_tokens, cache.num_evicted) == (8, 2)


def test_what_never_fits_is_not_kept_and_displaces_nothing():
    cache = TokenCache(10)
    cache.keep("a", 4)
    cache.keep("huge", 11)
    assert (cache.has("a"), cache.has("huge")) == (True, False)


def in_turn(num_pictures, num_rounds=3):
    """Pictures of 100 tokens, one after the other, round and round: the worst that can happen to an LRU."""
    return [
        Request(
            number=number,
            at_s=100.0 * number,
            class_name="all",
            text_tokens=1,
            output_tokens=1,
            pictures=(Picture(f"p{number % num_pictures}", 9, 100),),
            prefix=f"p{number % num_pictures}",
        )
        for number in range(num_pictures * num_rounds)
    ]


@pytest.mark.parametrize(("room", "later_s"), [(0, 0.01), (500, 0.01), (499, 1.01)])
def test_prompts_found_in_the_prefix_cache_follow_from_its_size(room, later_s):
    costs = Calibration(**COSTS, prefix_cache_tokens=room)
    ttft_s = simulate(aggregated(1), TRAFFIC, costs, requests=in_turn(5)).record.ttft_s
    assert list(ttft_s[:5]) == pytest.approx([2.01] * 5)
    assert list(ttft_s[5:]) == pytest.approx([later_s] * 10)


@pytest.mark.parametrize(("room", "later_s"), [(500, 1.01), (499, 2.01)])
def test_embeddings_that_caches_have_lost_are_made_again(room, later_s):
    costs = Calibration(**COSTS, prefix_cache_tokens=1, embedding_cache_tokens=room)
    ttft_s = simulate(aggregated(1), TRAFFIC, costs, requests=in_turn(5)).record.ttft_s
    assert list(ttft_s[5:]) == pytest.approx([later_s] * 10)


def test_lost_embeddings_of_encoders_apart_go_down_the_ladder():
    costs = Calibration(**COSTS, prefix_cache_tokens=1, embedding_cache_tokens=499)
    outcome = simulate(disaggregated(1, 1), TRAFFIC, costs, requests=in_turn(5))
    assert len(outcome.record) == 15
    assert list(outcome.record.ttft_s[5:]) == pytest.approx([2.01] * 10)
