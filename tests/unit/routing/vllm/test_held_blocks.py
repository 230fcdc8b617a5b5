"""Which starts of prompts a server still has, by the blocks that it says it stores and evicts."""

from hypothesis import given
from hypothesis import strategies as st

from chiasm.routing.vllm.cache_events.blocks import HeldBlocks, Served

SIZE = 16


def names(*numbers):
    return [b"%d" % number for number in numbers]


def held(**bounds):
    """A prompt of three blocks and a bit by call 'a': its starts have 8, 20, 40 and 50 tokens."""
    blocks = HeldBlocks(**bounds)
    blocks.stored("a", names(1, 2, 3), None, SIZE)
    blocks.served("a", Served(50, [("tiny", 8), ("short", 20), ("long", 40), ("all", 50)]))
    return blocks


def test_a_start_is_lost_with_the_block_that_it_ends_in_or_one_before():
    assert held().removed(names(3)) == {"all"}
    assert held().removed(names(2)) == {"long", "all"}
    assert held().removed(names(1)) == {"short", "long", "all"}
    assert not held().removed(names(9))


def test_a_start_of_less_than_a_block_is_left_to_book_keeping():
    assert held().num_starts == 3


def test_counts_that_cannot_be_leave_starts_to_book_keeping():
    blocks = HeldBlocks()
    blocks.stored("a", names(1, 2, 3), None, SIZE)
    blocks.served("a", Served(10, [("more pictures than tokens", -40)]))
    assert blocks.num_starts == 0


def test_few_calls_are_kept_whose_events_never_come():
    blocks = HeldBlocks()
    for number in range(600):
        blocks.served(str(number), Served(50, [(f"all of {number}", 50)]))
    for number in (0, 599):
        blocks.stored(str(number), names(1, 2, 3), None, SIZE)
    assert blocks.removed(names(3)) == {"all of 599"}


def test_a_block_that_several_prompts_share_takes_all_of_them_along():
    blocks = held()
    blocks.stored("b", names(1), None, SIZE)  # found in the cache
    blocks.stored("b", names(7), names(1)[0], SIZE)
    blocks.served("b", Served(40, [("short", 20), ("other", 36)]))
    assert blocks.removed(names(7)) == {"other"}
    assert blocks.removed(names(1)) == {"short", "long", "all"}
    assert (len(blocks), blocks.num_starts) == (0, 0)


def test_a_call_may_end_before_its_events_come():
    blocks = HeldBlocks()
    blocks.served("a", Served(50, [("all", 50)]))
    blocks.stored("a", names(1, 2), None, SIZE)
    assert blocks.num_starts == 0, "its prompt has three blocks"
    blocks.stored("a", names(3), names(2)[0], SIZE)
    assert blocks.removed(names(3)) == {"all"}


def test_an_answer_that_was_stored_with_its_prompt_is_no_part_of_it():
    blocks = HeldBlocks()
    blocks.stored("a", names(1, 2, 3, 4, 5), None, SIZE)
    blocks.served("a", Served(33, [("all", 33)]))
    assert not blocks.removed(names(3, 4, 5))
    assert blocks.removed(names(2)) == {"all"}


def test_blocks_whose_beginning_was_not_seen_are_unknown():
    blocks = HeldBlocks()
    blocks.stored("a", names(2, 3), names(1)[0], SIZE)
    blocks.served("a", Served(48, [("all", 48)]))
    assert (len(blocks), blocks.num_starts) == (0, 0)


def test_a_later_call_says_anew_where_a_start_ends():
    blocks = held()
    blocks.removed(names(3))
    blocks.stored("b", names(1, 2), None, SIZE)
    blocks.stored("b", names(3), names(2)[0], SIZE)
    blocks.served("b", Served(50, [("all", 50)]))
    assert blocks.removed(names(3)) == {"all"}


def test_what_is_let_go_of_for_want_of_room_is_not_called_lost():
    blocks = held(max_blocks=3)
    blocks.stored("b", names(8, 9), None, SIZE)
    assert len(blocks) <= 3
    assert not blocks.removed(names(1, 2, 3))
    blocks = held(max_starts=2)
    assert blocks.num_starts == 2
    assert blocks.removed(names(1)) == {"long", "all"}


def test_blocks_in_use_are_not_the_oldest():
    blocks = held(max_blocks=4)
    blocks.stored("b", names(8), None, SIZE)
    blocks.stored("c", names(1, 2, 3), None, SIZE)
    blocks.stored("d", names(9), None, SIZE)
    assert blocks.removed(names(1)) == {"short", "long", "all"}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(0, 12), st.integers(0, 80)), max_size=40))
def test_whatever_is_said_bounds_hold_and_starts_end_in_blocks_that_are_there(said):
    blocks = HeldBlocks(max_blocks=8, max_starts=6, max_calls=4)
    for kind, one, other, tokens in said:
        call = str(one % 5)
        if kind == 0:
            blocks.stored(call, names(one, one + 1), None if other % 3 == 0 else names(other)[0], SIZE)
        elif kind == 1:
            blocks.removed(names(one, other))
        elif kind == 2:
            blocks.served(call, Served(tokens, [(f"{one}.{part}", tokens * part // 3) for part in (1, 2, 3)]))
        elif other == 0:
            blocks.clear()
        assert len(blocks) <= 8
        assert blocks.num_starts <= 6
        assert all(key in blocks._blocks[name].starts for key, name in blocks._ends.items())
        assert sum(len(block.starts) for block in blocks._blocks.values()) == blocks.num_starts
