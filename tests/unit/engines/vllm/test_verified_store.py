"""What a consumer keeps goes when it is told to, but for what requests still use."""

from chiasm.engines.vllm.ec.verified_store import VerifiedStore
from tests.unit.engines.vllm.embeddings import GRID, LAYOUT, NUM_BYTES, Memory, embedding


def stored(*identities):
    memory = Memory(4 * NUM_BYTES)
    store = VerifiedStore(memory, 4 * NUM_BYTES)
    for identity in identities:
        store.put(identity, LAYOUT, GRID, embedding(1))
    return memory, store


def test_what_nobody_holds_is_forgotten_at_once_and_the_rest_when_it_is_let_go_of():
    memory, store = stored("a", "b")
    store.hold("a")
    assert store.forget() == 1
    assert set(memory.own) == {"a"}
    store.release("a")
    assert store.forget() == 0
    assert not memory.own


def test_a_copy_that_is_of_no_use_can_be_discarded():
    memory, store = stored("a", "b")
    store.hold("b")
    for identity in ("a", "b", "c"):
        store.discard(identity)
    assert set(memory.own) == {"b"}
    assert store.hold("a") is None
