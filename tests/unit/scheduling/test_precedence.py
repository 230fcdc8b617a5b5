from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from chiasm.scheduling.precedence import MAX_PASSED, Lines, Precedence


@dataclass(eq=False)
class Waiter:
    rank: tuple[int, ...]
    name: int = 0


def serve_one(precedence: Precedence, lines: Lines[Waiter]) -> Waiter:
    heads = lines.heads(lambda one: True)
    served = precedence.in_order(heads)[0]
    precedence.served(heads, [served])
    lines.remove(served)
    return served


def test_a_lower_rank_goes_first_and_equals_by_arrival():
    lines: Lines[Waiter] = Lines()
    for name, rank in enumerate([(1,), (0,), (1,), (0,)]):
        lines.add(Waiter(rank, name))
    precedence = Precedence()
    assert [serve_one(precedence, lines).name for _ in range(4)] == [1, 3, 0, 2]


def test_a_rank_that_was_passed_over_often_goes_first_once():
    lines: Lines[Waiter] = Lines()
    for name in range(3):
        lines.add(Waiter((1,), name))
    precedence, served = Precedence(), []
    for _ in range(3 * (MAX_PASSED + 1)):
        lines.add(Waiter((0,), -1))
        served.append(serve_one(precedence, lines).name)
    assert [place for place, name in enumerate(served) if name >= 0] == [8, 17, 26]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=120))
def test_nobody_waits_longer_than_those_before_it_and_the_passes_of_its_rank(arrivals):
    """Of `ranks` ranks, the head of one is passed over at most `MAX_PASSED + ranks` times before it is served."""
    lines: Lines[Waiter] = Lines()
    precedence, num_passed = Precedence(), {}
    for number, (rank, num_served) in enumerate([*arrivals, *[(0, 2)] * 400]):
        if number < len(arrivals):
            lines.add(Waiter((rank,), number))
        for _ in range(num_served):
            if not len(lines):
                break
            heads = lines.heads(lambda one: True)
            served = serve_one(precedence, lines)
            for head in heads:
                num_passed[head] = num_passed.get(head, 0) + (head is not served)
                assert num_passed[head] <= MAX_PASSED + 3
    assert len(lines) == 0


def test_one_whose_rank_changes_stands_where_it_would_have_stood():
    lines: Lines[Waiter] = Lines()
    first, late, last = Waiter((1,), 0), Waiter((2,), 1), Waiter((1,), 2)
    for one in (first, late, last):
        lines.add(one)
    late.rank = (1,)
    lines.rerank(late)
    precedence = Precedence()
    assert [serve_one(precedence, lines).name for _ in range(3)] == [0, 1, 2]


def test_heads_are_the_first_that_may_go():
    lines: Lines[Waiter] = Lines()
    for name in range(3):
        lines.add(Waiter((0,), name))
    assert [one.name for one in lines.heads(lambda one: one.name > 0)] == [1]
    assert lines.heads(lambda one: False) == []
