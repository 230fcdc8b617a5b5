"""What all ways of a request have in common."""

from hypothesis import given
from hypothesis import strategies as st

from chiasm.routing.coverage.prefixes import Prefix
from chiasm.routing.prediction import Board, needs_of
from chiasm.routing.view import Job
from tests.unit.routing.test_policies import WHOLE, fleet, item, worker

NAMES = ("a", "b", "c")
ROLES = (WHOLE, frozenset({"prefill", "decode"}))
subsets = st.frozensets(st.sampled_from(NAMES))


@given(
    topology=st.sampled_from(("auto", "e-pd", "agg")),
    roles=st.tuples(*[st.sampled_from(ROLES)] * len(NAMES)),
    holders=st.lists(st.tuples(subsets, st.booleans(), st.booleans()), max_size=3),
    known=subsets,
    local_only=st.booleans(),
)
def test_needs_are_those_of_the_worker_also_where_several_share_them(topology, roles, holders, known, local_only):
    items = [
        item(f"i{n}", position=n, holders=names, has_handle=on_offer, has_pixels=at_hand)
        for n, (names, on_offer, at_hand) in enumerate(holders)
    ]
    job = Job(
        items=tuple(items),
        num_chars=400,
        known={name: Prefix("k", 100, tuple(one.identity for one in items[:2])) for name in sorted(known)},
        local_only=frozenset(one.identity for one in items[:1]) if local_only else frozenset(),
    )
    view = fleet(topology, *(worker(name, one) for name, one in zip(NAMES, roles, strict=True)))
    board = Board(job, view)
    for _ in range(2):
        assert [board.needs(one) for one in view.workers] == [needs_of(job, view, one) for one in view.workers]
