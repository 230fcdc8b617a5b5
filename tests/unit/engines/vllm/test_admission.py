"""A request gets in when all it needs is checked and held, fails alone when it cannot be had, and waits so long."""

import threading
import time

import msgspec
import pytest

from chiasm.errors import (
    ChecksumMismatchError,
    DeadlineExceededError,
    HandleExpiredError,
    LayoutMismatchError,
    TransferError,
)
from tests.unit.engines.vllm.embeddings import (
    GRID,
    LAYOUT,
    NUM_BYTES,
    Consumer,
    Memory,
    announcement,
    embedding,
    wanted,
)


@pytest.fixture
def consumer():
    made = Consumer()
    yield made
    made.close()


def offer(consumer, identity, seed=1, data=None, **fields):
    """Have a producer offer an embedding; returns the request's `ec_transfer_params` entry."""
    consumer.memory.offered[identity] = embedding(seed) if data is None else data
    said = announcement(embedding(seed), identity, **fields)
    return {identity: {"item_indices": [0], "metadata": GRID, "chiasm": msgspec.to_builtins(said)}}


def admit(consumer, request_id, items, params):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if consumer.admission.is_ready(request_id, items, params):
            return
        consumer.pulls.wait_any(0.05)
    raise AssertionError("not admitted")


def test_what_was_published_is_held_until_the_request_ends(consumer):
    admit(consumer, "r", [wanted("a")], offer(consumer, "a"))
    assert consumer.admission.held("r", "a").layout == LAYOUT
    assert consumer.memory.own == {"a": embedding(1)}
    consumer.admission.forget("r")
    assert consumer.admission.held("r", "a") is None
    assert consumer.admission.num_requests == 0


def test_a_repeated_item_is_pulled_once(consumer):
    params = offer(consumer, "a")
    admit(consumer, "r", [wanted("a"), wanted("a", end=20)], params)
    admit(consumer, "s", [wanted("a")], params)
    assert consumer.memory.num_fetches == 1
    assert consumer.counters.take()["local_hits"] >= 1


def test_what_is_still_there_needs_no_announcement(consumer):
    admit(consumer, "r", [wanted("a")], offer(consumer, "a"))
    assert consumer.admission.is_ready("s", [wanted("a")], None)


def test_a_wrong_grid_fails_also_when_the_embedding_is_there(consumer):
    params = offer(consumer, "a")
    admit(consumer, "r", [wanted("a")], params)
    for metadata, rows in ({"image_grid_thw": [1, 2, 8]}, 4), (GRID, 5):
        with pytest.raises(LayoutMismatchError):
            consumer.admission.is_ready("s", [wanted("a", metadata=metadata, num_rows=rows)], params)
        with pytest.raises(LayoutMismatchError):
            consumer.admission.is_ready("r", [wanted("a"), wanted("a", metadata=metadata, num_rows=rows)], params)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda memory: memory.offered.clear(), HandleExpiredError),
        (lambda memory: memory.offered.update(a=embedding(2)), ChecksumMismatchError),
        (lambda memory: memory.offered.update(a=embedding(1)[:-1]), ChecksumMismatchError),
    ],
)
def test_bytes_that_are_gone_or_wrong_never_get_in(consumer, change, error):
    params = offer(consumer, "a")
    change(consumer.memory)
    with pytest.raises(error):
        admit(consumer, "r", [wanted("a")], params)
    assert consumer.memory.own == {}
    consumer.admission.forget("r")
    admit(consumer, "s", [wanted("b")], offer(consumer, "b"))  # others are not harmed


def test_a_surprise_in_a_pull_fails_its_request_only(consumer):
    params = offer(consumer, "a")
    consumer.memory.fetch = None
    consumer.pulls._fetches["shm"] = lambda *_: 1 // 0
    with pytest.raises(TransferError):
        admit(consumer, "r", [wanted("a")], params)


def test_a_transport_that_is_not_allowed_is_refused(consumer):
    with pytest.raises(TransferError, match="tcp"):
        admit(consumer, "r", [wanted("a")], offer(consumer, "a", transport="tcp"))


def test_a_request_waits_no_longer_than_it_may(consumer):
    params = offer(consumer, "a")
    consumer.pulls._fetches["shm"] = None  # never starts: nobody asks the pull how it ended before the deadline
    consumer.pulls.is_done = lambda pull, metadata, deadline: False
    assert not consumer.admission.is_ready("r", [wanted("a")], params)
    consumer.now = 1.9
    assert not consumer.admission.is_ready("r", [wanted("a")], params)
    consumer.now = 2.1
    with pytest.raises(DeadlineExceededError):
        consumer.admission.is_ready("r", [wanted("a")], params)


def test_another_address_is_tried_though_the_first_is_still_being_waited_for(consumer):
    params = offer(consumer, "a")
    go_on = threading.Event()

    def fetch(address, num_bytes, timeout_s):
        assert address != "stuck" or go_on.wait(60)
        return Memory.fetch(consumer.memory, address, num_bytes, timeout_s)

    consumer.pulls._fetches["shm"] = fetch
    stuck = offer(consumer, "a", address="stuck")
    assert not consumer.admission.is_ready("r", [wanted("a")], stuck)
    admit(consumer, "s", [wanted("a")], params)
    go_on.set()


def test_how_an_abandoned_pull_ended_is_not_held_against_later_requests(consumer):
    params = offer(consumer, "a")
    offered, consumer.memory.offered = consumer.memory.offered, {}
    consumer.admission.is_ready("r", [wanted("a")], params)
    consumer.pulls.wait_any(60)
    consumer.admission.forget("r")
    consumer.memory.offered = offered
    consumer.now = 10.0
    admit(consumer, "s", [wanted("a")], params)


def test_what_nobody_holds_makes_room_and_what_is_held_does_not():
    consumer = Consumer(max_bytes=2 * NUM_BYTES)
    admit(consumer, "r", [wanted("a")], offer(consumer, "a"))
    admit(consumer, "s", [wanted("b")], offer(consumer, "b", 2))
    third = offer(consumer, "c", 3)
    for _ in range(20):
        assert not consumer.admission.is_ready("t", [wanted("c")], third)
    consumer.admission.forget("r")
    admit(consumer, "t", [wanted("c")], third)
    assert set(consumer.memory.own) == {"b", "c"}
    assert consumer.store.num_evicted == 1
    consumer.close()


def test_what_can_never_fit_fails_without_emptying_the_store():
    consumer = Consumer(max_bytes=NUM_BYTES)
    admit(consumer, "r", [wanted("a")], offer(consumer, "a"))
    consumer.admission.forget("r")
    layout = msgspec.structs.replace(LAYOUT, shape=(8, 8))
    params = offer(consumer, "b", data=embedding(1) * 2)
    grid = {"image_grid_thw": [2, 4, 4]}
    said = announcement(embedding(1) * 2, "b", grid, layout=layout)
    params["b"]["metadata"] = grid
    params["b"]["chiasm"] = msgspec.to_builtins(said)
    consumer.now = 3.0
    assert not consumer.admission.is_ready("s", [wanted("b", num_rows=8, metadata=grid)], params)
    consumer.now = 6.0
    with pytest.raises((DeadlineExceededError, TransferError)):
        admit(consumer, "s", [wanted("b", num_rows=8, metadata=grid)], params)
    assert set(consumer.memory.own) == {"a"}
    consumer.close()


def test_a_consumer_with_the_medium_encodes_it_itself(consumer):
    item = wanted("a", has_media=True)
    assert consumer.admission.is_ready("r", [item], None)
    assert consumer.admission.held("r", "a") is None
    params = offer(consumer, "b")
    consumer.memory.offered.clear()
    admit(consumer, "s", [wanted("b", has_media=True)], params)
    assert consumer.admission.held("s", "b") is None
    assert consumer.counters.take()["local_encodes:embedding_unavailable"] == 2


def test_a_consumer_with_the_medium_takes_the_embedding_when_it_can(consumer):
    admit(consumer, "r", [wanted("a", has_media=True)], offer(consumer, "a"))
    assert consumer.admission.held("r", "a") is not None


def test_another_grid_of_an_identity_waits_for_the_first_to_go_or_fails(consumer):
    """Encoders with other size limits may give one picture other grids, of as many rows by chance."""
    admit(consumer, "r", [wanted("a")], offer(consumer, "a"))
    grid = {"image_grid_thw": [1, 2, 8]}
    params = offer(consumer, "a", 2)
    said = announcement(embedding(2), "a", grid)
    params["a"] |= {"metadata": grid, "chiasm": msgspec.to_builtins(said)}
    with pytest.raises(LayoutMismatchError):
        admit(consumer, "s", [wanted("a", metadata=grid)], params)
    assert consumer.admission.held("s", "a") is None
    consumer.admission.forget("r")
    consumer.admission.forget("s")
    admit(consumer, "t", [wanted("a", metadata=grid)], params)
    assert consumer.memory.own == {"a": embedding(2)}


def test_a_preempted_request_gets_its_embedding_again(consumer):
    params = offer(consumer, "a")
    admit(consumer, "r", [wanted("a")], params)
    consumer.admission.release_item("r", "a")
    consumer.store._drop("a")
    consumer.now = 100.0
    admit(consumer, "r", [wanted("a")], params)
    assert consumer.admission.held("r", "a") is not None
