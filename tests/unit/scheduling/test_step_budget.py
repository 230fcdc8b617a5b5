import pytest

from chiasm.scheduling.step_budget import TEXTS_COME_S, StepBudget
from chiasm.scheduling.turns import Demand


def budget(fixed_s: float, each_s: float, max_step_s: float = 0.005) -> StepBudget:
    """One that has seen steps of all sizes, first of a machine that was ten times as slow."""
    made = StepBudget(max_step_s)
    for factor in (10, 1):
        for number in range(600):
            num_tokens = 1 + 37 * number % 200
            made.see(num_tokens, factor * (fixed_s + each_s * num_tokens))
    return made


def test_a_step_takes_its_time_while_texts_come():
    assert budget(0.001, 0.0001).max_media_tokens(Demand.TEXT, 0.0) == pytest.approx(40, abs=1)


def test_without_texts_there_is_no_bound():
    made = budget(0.001, 0.0001)
    assert made.max_media_tokens(Demand.USUAL, 0.0) is None
    made.max_media_tokens(Demand.TEXT, 10.0)
    assert made.max_media_tokens(Demand.USUAL, 10.0 + TEXTS_COME_S / 2) is not None
    assert made.max_media_tokens(Demand.USUAL, 10.1 + TEXTS_COME_S) is None


def test_tokens_are_worth_the_fixed_cost():
    assert budget(0.02, 0.0001).max_media_tokens(Demand.TEXT, 0.0) == pytest.approx(200, abs=3)


def test_tokens_that_cost_much_come_in_few():
    assert budget(0.0, 0.01).max_media_tokens(Demand.TEXT, 0.0) == 16


@pytest.mark.parametrize("seen", [[], [(8, 0.0)], [(0, 0.01)], [(1, 0.02), (100, 0.02)], [(1, 0.02), (100, 0.01)]])
def test_what_says_nothing_of_tokens_bounds_nothing(seen):
    made = StepBudget(0.005)
    for num_tokens, seconds in seen:
        made.see(num_tokens, seconds)
    assert made.max_media_tokens(Demand.TEXT, 0.0) is None


def test_one_size_of_steps_counts_as_proportional():
    made = StepBudget(0.005)
    for _ in range(10):
        made.see(100, 0.01)
    assert made.max_media_tokens(Demand.TEXT, 0.0) == pytest.approx(50, abs=1)
