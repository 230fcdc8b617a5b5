"""Which requests end when an embedding was not there, by where their steps are."""

from types import SimpleNamespace

import pytest

from chiasm.engines.vllm.losses import touches


def request(computed, in_flight, stale=0, items=(("lost", 10, 20),)):
    """Items are identity, offset and length."""
    features = [
        SimpleNamespace(identifier=identity, mm_position=SimpleNamespace(offset=offset, length=length))
        for identity, offset, length in items
    ]
    return SimpleNamespace(
        num_computed_tokens=computed,
        num_in_flight_tokens=in_flight,
        num_stale_output_tokens=stale,
        mm_features=features,
    )


@pytest.mark.parametrize(
    ("computed", "in_flight", "is_touched"),
    [
        (100, 100, True),
        (11, 1, True),
        (30, 1, True),
        (10, 10, False),  # not reached
        (31, 1, False),  # passed in an earlier step
        (100, 0, False),  # waits for nothing
        (0, 0, False),
    ],
)
def test_steps_that_are_out_count(computed, in_flight, is_touched):
    assert touches(request(computed, in_flight), {"lost"}, is_new=False) is is_touched


def test_other_items_do_not():
    assert not touches(request(100, 100), {"other"}, is_new=False)
    assert touches(request(100, 70, items=[("fine", 10, 20), ("lost", 40, 20)]), {"lost"}, is_new=False)
    assert not touches(request(100, 30, items=[("lost", 10, 20), ("fine", 80, 5)]), {"lost"}, is_new=False)


def test_a_request_that_was_just_let_in_may_have_found_blocks_of_the_same_step():
    found = request(129, 1)  # all but one token were in the prefix cache
    assert touches(found, {"lost"}, is_new=True)
    assert not touches(found, {"lost"}, is_new=False)
    assert not touches(request(10, 10), {"lost"}, is_new=True), "it has not come to the item"


def test_a_preempted_request_has_answers_on_their_way():
    assert touches(request(0, 100, stale=100), {"lost"}, is_new=False)
    assert not touches(request(0, 100, stale=100), {"other"}, is_new=False)
