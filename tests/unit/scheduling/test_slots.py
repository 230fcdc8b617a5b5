from hypothesis import given
from hypothesis import strategies as st

from chiasm.scheduling.slots import SlotMove, SlotTable


def apply(content: dict[int, int], move: SlotMove | None) -> None:
    if move is None:
        return
    moved, displaced = content.pop(move.source), content.get(move.target)
    content[move.target] = moved
    if move.displaced is not None:
        assert displaced == move.displaced
        content[move.source] = displaced


def test_the_usual_case_moves_nothing():
    table = SlotTable(4)
    for key in range(4):
        table.take(key)
        assert table.promote(key) is None
    assert table.release(3) is None
    assert table.num_free == 1


def test_a_gap_is_filled_by_the_last_decoding_sequence():
    table = SlotTable(4)
    for key in range(3):
        table.take(key)
        table.promote(key)
    assert table.release(0) == SlotMove(2, 0)
    assert table.slot(2) == 0


def test_a_later_prefill_that_ends_first_changes_places():
    table = SlotTable(4)
    table.take(10)
    table.take(11)
    assert table.promote(11) == SlotMove(1, 0, displaced=10)
    assert (table.slot(11), table.slot(10)) == (0, 1)


@given(st.data())
def test_content_follows_its_owner_through_any_history(data):
    table = SlotTable(5)
    content: dict[int, int] = {}
    prefilling: list[int] = []
    decoding: list[int] = []
    for key in range(data.draw(st.integers(1, 40))):
        choices = (
            ["take"] * (table.num_free > 0) + ["promote"] * bool(prefilling) + ["end"] * bool(prefilling + decoding)
        )
        action = data.draw(st.sampled_from(choices))
        if action == "take":
            content[table.take(key)] = key
            prefilling.append(key)
        elif action == "promote":
            chosen = data.draw(st.sampled_from(prefilling))
            apply(content, table.promote(chosen))
            prefilling.remove(chosen)
            decoding.append(chosen)
        else:
            chosen = data.draw(st.sampled_from(prefilling + decoding))
            del content[table.slot(chosen)]
            apply(content, table.release(chosen))
            (prefilling if chosen in prefilling else decoding).remove(chosen)
        table.check_invariants()
        assert content == {table.slot(k): k for k in prefilling + decoding}
        assert sorted(table.slot(k) for k in decoding) == list(range(len(decoding)))
