from hypothesis import given
from hypothesis import strategies as st

from chiasm.scheduling.encode_budget import EncodeBudget


def test_nothing_is_batched_before_a_picture_was_measured():
    assert EncodeBudget(1024, 0.05).num_embeddings == 1


def test_a_batch_takes_no_longer_than_it_may():
    budget = EncodeBudget(1024, 0.05)
    budget.see(64, 0.0128)  # 0.2 ms each
    assert budget.num_embeddings == 250


def test_the_fixed_limit_holds_on_a_fast_device():
    budget = EncodeBudget(1024, 0.05)
    budget.see(64, 0.0)
    assert budget.num_embeddings == 1024


@given(st.lists(st.tuples(st.integers(1, 4096), st.floats(0, 10)), max_size=30))
def test_there_is_always_room_for_a_picture(batches):
    budget = EncodeBudget(1024, 0.05)
    for num_embeddings, seconds in batches:
        budget.see(num_embeddings, seconds)
        assert 1 <= budget.num_embeddings <= 1024


def test_it_follows_a_device_that_slows_down():
    budget = EncodeBudget(1024, 0.05)
    budget.see(100, 0.01)
    before = budget.num_embeddings
    for _ in range(30):
        budget.see(100, 0.1)
    assert before == 500
    assert budget.num_embeddings == 50
