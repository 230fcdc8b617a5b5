import random

import pytest

from chiasm.errors import OverloadedError
from chiasm.scheduling.precedence import MAX_PASSED
from chiasm.scheduling.scheduler import MAX_ALONE, Scheduler, Sequence, State, Step
from chiasm.scheduling.turns import Demand


def scheduler(num_slots: int = 4, max_step_tokens: int = 32, max_waiting: int = 100) -> Scheduler:
    return Scheduler(num_slots=num_slots, max_step_tokens=max_step_tokens, max_waiting=max_waiting)


def nothing_cached(sequence: Sequence, slot: int) -> int:
    return 0


def run_step(s: Scheduler) -> Step:
    step = s.plan(nothing_cached)
    s.complete(step)
    return step


def test_a_long_prompt_is_computed_in_chunks_of_the_budget():
    s = scheduler(max_step_tokens=32)
    sequence = Sequence(0, 70)
    s.add(sequence)
    assert [run_step(s).chunks[0].num_tokens for _ in range(3)] == [32, 32, 6]
    assert sequence.state is State.DECODING


def test_decode_rows_come_first_and_shrink_the_chunk():
    s = scheduler(max_step_tokens=32)
    for key in range(3):
        s.add(Sequence(key, 4))
    run_step(s)
    s.add(Sequence(3, 100))
    step = s.plan(nothing_cached)
    assert step.num_decoding == 3
    assert [chunk.num_tokens for chunk in step.chunks] == [29]


def test_decoding_never_waits_for_a_long_prefill():
    s = scheduler(max_step_tokens=32)
    s.add(Sequence(0, 4))
    run_step(s)
    s.add(Sequence(1, 1000))
    while True:
        step = s.plan(nothing_cached)
        assert step.num_decoding >= 1
        s.complete(step)
        if step.num_decoding == 2:
            break


def test_cached_tokens_are_not_computed_again():
    s = scheduler()
    s.add(Sequence(0, 20))
    step = s.plan(lambda sequence, slot: 16)
    assert (step.chunks[0].start, step.chunks[0].num_tokens) == (16, 4)


def test_first_come_first_served():
    s = scheduler(num_slots=1, max_step_tokens=8)
    order = []
    for key in range(3):
        s.add(Sequence(key, 4))
    for _ in range(3):
        chunk = run_step(s).chunks[0]
        order.append(chunk.sequence.key)
        s.end(chunk.sequence)
    assert order == [0, 1, 2]


def test_a_follower_starts_when_its_leader_decodes_or_has_ended():
    s = scheduler()
    leader = Sequence(0, 40)
    s.add(leader)
    s.add(Sequence(1, 40, after=leader))
    s.add(Sequence(2, 4))
    assert {chunk.sequence.key for chunk in run_step(s).chunks} == {0}  # the leader took the whole budget
    s.complete(s.plan(nothing_cached))
    assert leader.state is State.DECODING
    assert {chunk.sequence.key for chunk in s.plan(nothing_cached).chunks} >= {1}


def test_a_follower_of_a_cancelled_leader_still_runs():
    s = scheduler()
    leader, follower = Sequence(0, 40), Sequence(1, 4)
    follower.after = leader
    s.add(leader)
    s.add(follower)
    s.end(leader)
    assert run_step(s).chunks[0].sequence is follower


def test_the_queue_is_bounded():
    s = scheduler(max_waiting=2)
    s.add(Sequence(0, 4))
    s.add(Sequence(1, 4))
    with pytest.raises(OverloadedError):
        s.add(Sequence(2, 4))


def test_ending_twice_is_harmless():
    s = scheduler()
    sequence = Sequence(0, 4)
    s.add(sequence)
    run_step(s)
    s.end(sequence)
    assert s.end(sequence) is None
    assert s.slots.num_free == 4


@pytest.mark.parametrize("seed", range(20))
def test_any_history_ends_with_everything_free(seed):
    rng = random.Random(seed)
    s = scheduler(num_slots=3, max_step_tokens=16)
    open_sequences: list[Sequence] = []
    for key in range(40):
        leader = rng.choice(open_sequences) if open_sequences and rng.random() < 0.3 else None
        open_sequences.append(Sequence(key, rng.randint(1, 60), after=leader))
        s.add(open_sequences[-1])
        for _ in range(rng.randint(0, 4)):
            step = s.plan(nothing_cached)
            assert step.num_decoding + sum(chunk.num_tokens for chunk in step.chunks) <= 16
            s.complete(step)
            s.slots.check_invariants()
        for sequence in [q for q in open_sequences if rng.random() < 0.15]:
            s.end(sequence)
            open_sequences.remove(sequence)
            s.slots.check_invariants()
    steps = 0
    while s.has_work:
        step = s.plan(nothing_cached)
        assert not step.is_empty, "work is left but nothing runs"
        for sequence, _ in s.complete(step):
            s.end(sequence)
        for slot in range(step.num_decoding - 1, -1, -1):
            owner = s.slots.owner(slot)
            for sequence in [q for q in open_sequences if q.key == owner]:
                s.end(sequence)
        steps += 1
        assert steps < 2000
    assert (s.slots.num_free, s.num_waiting, s.num_running) == (3, 0, 0)


def test_a_text_goes_before_pictures_that_wait_for_the_budget():
    s = scheduler(max_step_tokens=32)
    pictures = [Sequence(key, 64, has_media=True) for key in range(2)]
    for sequence in pictures:
        s.add(sequence)
    run_step(s)
    text = Sequence(2, 20)
    s.add(text)
    assert [(chunk.sequence, chunk.num_tokens) for chunk in run_step(s).chunks] == [(text, 20), (pictures[0], 12)]


def test_prompts_with_pictures_fill_a_step_as_far_as_they_may():
    s = scheduler(max_step_tokens=512)
    for key in (1, 2, 3):
        s.add(Sequence(key, 20, has_media=True))
    step = s.plan(nothing_cached, 50)
    assert [(chunk.sequence.key, chunk.num_tokens) for chunk in step.chunks] == [(1, 20), (2, 20), (3, 10)]
    assert step.num_tokens == 50


def test_texts_fill_a_step_beyond_what_prompts_with_pictures_may():
    s = scheduler(max_step_tokens=512)
    for sequence in (Sequence(0, 100), Sequence(1, 20, has_media=True)):
        s.add(sequence)
    assert [chunk.sequence.key for chunk in s.plan(nothing_cached, 50).chunks] == [0]


def test_a_callers_priority_goes_before_the_kind():
    s = scheduler(num_slots=1)
    s.add(Sequence(0, 4))
    urgent = Sequence(1, 4, has_media=True, priority=-1)
    s.add(urgent)
    assert run_step(s).chunks[0].sequence is urgent


def test_a_picture_is_not_passed_over_without_end():
    s = scheduler(max_step_tokens=16)
    picture = Sequence(0, 32, has_media=True)
    s.add(picture)
    steps = 0
    while picture.state is not State.ENDED:
        text = Sequence(1000 + steps, 40)
        s.add(text)
        for sequence, _ in s.complete(s.plan(nothing_cached)):
            s.end(sequence)
        steps += 1
        assert steps < 40


def test_what_is_there_of_a_prompt_is_computed_and_no_more():
    s = scheduler()
    sequence = Sequence(0, 30, has_media=True, num_missing_tokens=18)
    s.add(sequence)
    assert run_step(s).chunks[0].num_tokens == 12
    assert run_step(s).is_empty
    s.set_missing(sequence, 10)
    assert run_step(s).chunks[0].num_tokens == 8
    s.set_missing(sequence, 0)
    assert run_step(s).chunks[0].is_last
    assert sequence.state is State.DECODING


def test_a_cache_may_hold_more_of_a_prompt_than_has_come():
    s = scheduler()
    sequence = Sequence(0, 30, has_media=True, num_missing_tokens=18)
    s.add(sequence)
    assert s.plan(lambda *_: 16).is_empty
    s.set_missing(sequence, 0)
    assert run_step(s).chunks[0].start == 16


def test_prompts_that_lack_pictures_leave_slots_to_others():
    s = scheduler(num_slots=4)
    waiting = [Sequence(key, 30, has_media=True, num_missing_tokens=18) for key in range(4)]
    for sequence in waiting:
        s.add(sequence)
    run_step(s)
    assert (s.num_running, s.num_waiting) == (2, 2)
    texts = [Sequence(10 + key, 4) for key in range(2)]
    for sequence in texts:
        s.add(sequence)
    run_step(s)
    assert all(sequence.state is State.DECODING for sequence in texts)
    s.end(texts[0])
    s.end(texts[1])
    s.set_missing(waiting[3], 0)  # complete now, and no longer bounded
    step = run_step(s)
    assert [chunk.sequence for chunk in step.chunks] == [waiting[3]]


def test_they_never_take_the_last_free_slot():
    s = scheduler(num_slots=4)
    for key in range(3):
        s.add(Sequence(key, 4))
    run_step(s)
    s.add(Sequence(3, 30, has_media=True, num_missing_tokens=18))
    assert s.plan(nothing_cached).chunks == ()
    assert s.slots.num_free == 1


def test_a_prompt_that_cannot_go_on_is_no_work():
    s = scheduler()
    s.add(Sequence(0, 30, has_media=True, num_missing_tokens=18))
    assert s.demand is Demand.AHEAD
    run_step(s)
    assert s.demand is Demand.NOTHING
    assert s.has_work


def test_while_texts_come_a_text_has_its_step_for_itself():
    s = scheduler(max_step_tokens=64)
    s.add(Sequence(0, 100, has_media=True))
    s.add(Sequence(1, 10))
    step = s.plan(nothing_cached, 20)
    assert [(chunk.sequence.key, chunk.num_tokens) for chunk in step.chunks] == [(1, 10)]
    s.complete(step)
    assert [(chunk.sequence.key, chunk.num_tokens) for chunk in s.plan(nothing_cached, 20).chunks] == [(0, 20)]


def test_pictures_get_their_part_of_every_third_step_of_texts_that_never_end():
    s = scheduler(num_slots=40, max_step_tokens=64)
    pictures = Sequence(0, 80, has_media=True)
    s.add(pictures)
    shares = []
    for key in range(1, 4 * (MAX_ALONE + 1) + 1):
        s.add(Sequence(key, 10))
        step = s.plan(nothing_cached, 30)
        shares.append(sum(chunk.num_tokens for chunk in step.chunks if chunk.sequence is pictures))
        s.complete(step)
    assert shares == 4 * ([0] * MAX_ALONE + [20])
    assert pictures.state is State.DECODING


def test_steps_without_prompts_in_between_end_a_row_of_texts_steps():
    s = scheduler(num_slots=40, max_step_tokens=64)

    def text_beside_pictures(key):
        """Whether the text has its step for itself; both end."""
        sequences = [Sequence(key, 10), Sequence(key + 1, 10, has_media=True)]
        for one in sequences:
            s.add(one)
        step = s.plan(nothing_cached, 30)
        for one in sequences:
            s.end(one)
        return len(step.chunks) == 1

    s.add(Sequence(0, 4))
    s.complete(s.plan(nothing_cached, 30))
    assert [text_beside_pictures(key) for key in (10, 20, 30)] == [True, True, False]
    assert [text_beside_pictures(key) for key in (40, 50)] == [True, True]
    step = s.plan(nothing_cached, 30)
    assert (step.num_decoding, step.chunks) == (1, ())
    assert text_beside_pictures(60)


def test_texts_that_need_all_of_their_part_pass_pictures_over_for_so_many_steps_and_no_more():
    s = scheduler(num_slots=40, max_step_tokens=64)
    pictures = Sequence(0, 80, has_media=True)
    s.add(pictures)
    shares = []
    for key in range(1, MAX_PASSED + 2):
        s.add(Sequence(key, 40))
        step = s.plan(nothing_cached, 30)
        shares.append(sum(chunk.num_tokens for chunk in step.chunks if chunk.sequence is pictures))
        s.complete(step)
    assert shares == [0] * MAX_PASSED + [30]


def test_where_no_texts_are_expected_steps_are_filled():
    s = scheduler(max_step_tokens=64)
    s.add(Sequence(0, 100, has_media=True))
    s.add(Sequence(1, 10))
    assert [chunk.sequence.key for chunk in s.plan(nothing_cached).chunks] == [1, 0]
