from typing import Any

import msgspec
import pytest

from chiasm.connectors.base import ExpectedEmbedding, checksum
from chiasm.connectors.local import LocalConnector
from chiasm.errors import ChecksumMismatchError, HandleExpiredError, LayoutMismatchError, OverloadedError
from chiasm.protocol.deletion import Deletion
from chiasm.protocol.media import EmbeddingMetadata

DATA = bytes(range(96))


def metadata(data: bytes = DATA, **changes: Any) -> EmbeddingMetadata:
    values: dict[str, Any] = {
        "identity": "a" * 64,
        "num_embeddings": 6,
        "shape": (6, 4),
        "dtype": "float32",
        "grid_thw": (1, 4, 6),
        "merge_size": 2,
        "model_revision": "m1",
        "processor_revision": "p1",
        "checksum": checksum(data),
    }
    return EmbeddingMetadata(**(values | changes))


def expected(**changes: Any) -> ExpectedEmbedding:
    values: dict[str, Any] = {
        "identity": "a" * 64,
        "num_embeddings": 6,
        "width": 4,
        "dtype": "float32",
        "grid_thw": (1, 4, 6),
        "model_revision": "m1",
        "processor_revision": "p1",
    }
    return ExpectedEmbedding(**(values | changes))


def connector() -> LocalConnector:
    return LocalConnector(capacity_bytes=1000, max_held_bytes=1000)


def test_what_is_published_is_loaded_unchanged():
    c = connector()
    handle = c.publish(metadata(), DATA)
    assert bytes(c.load(handle, expected())) == DATA


def test_an_embedding_is_found_in_its_own_scope_only():
    c = connector()
    ours, shared = c.publish(metadata(), DATA, "ours"), c.publish(metadata(), DATA)
    assert ours.key != shared.key
    assert c.num_stored == 2
    assert c.forget(Deletion(cache_salt="ours")) == (0, [ours.key])
    assert c.hold(ours.key) is None
    assert c.hold(shared.key) is not None
    assert bytes(c.load(ours, expected())) == DATA, "who holds it has it"
    c.release(ours.key)
    assert c.num_stored == 1


def test_a_deleted_medium_goes_from_all_scopes():
    c = connector()
    for salt in ("", "ours"):
        c.release(c.publish(metadata(), DATA, salt).key)
    kept = c.publish(metadata(identity="b" * 64), DATA, "ours")
    assert c.forget(Deletion(identity="a" * 64)) == (2, [])
    assert c.num_stored == 1
    c.release(kept.key)


def test_an_embedding_leaves_memory_when_its_time_is_over():
    now = 5.0
    c = LocalConnector(capacity_bytes=1000, max_held_bytes=1000, ttl_s=60.0, clock=lambda: now)
    handle = c.publish(metadata(), DATA)
    now += 61
    assert c.hold(handle.key) is None
    assert c.share(handle.key) == handle, "those who made it may still hand it on"
    c.release(handle.key)
    assert c.num_stored == 1
    c.release(handle.key)
    assert c.num_stored == 0
    c.release(c.publish(metadata(), DATA).key)
    now += 61
    assert c.num_stored == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"identity": "b" * 64},
        {"num_embeddings": 24, "grid_thw": (1, 8, 12)},
        {"width": 8},
        {"dtype": "bfloat16"},
        {"grid_thw": (1, 6, 4)},
        {"model_revision": "m2"},
        {"processor_revision": "p2"},
    ],
)
def test_a_consumer_that_planned_otherwise_gets_an_error_not_a_wrong_answer(changes):
    c = connector()
    handle = c.publish(metadata(), DATA)
    with pytest.raises(LayoutMismatchError):
        c.load(handle, expected(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"shape": (6, 5)},
        {"num_embeddings": 5},
        {"grid_thw": (1, 4, 4)},
        {"dtype": "float16"},
        {"merge_size": 1},
    ],
)
def test_an_announcement_that_contradicts_itself_is_refused(changes):
    c = connector()
    handle = c.publish(metadata(**changes), DATA)
    with pytest.raises(LayoutMismatchError):
        c.load(handle, expected())


def test_truncated_and_changed_bytes_are_refused():
    c = connector()
    with pytest.raises(LayoutMismatchError, match="bytes"):
        c.load(c.publish(metadata(), DATA[:-4]), expected())
    c = connector()
    with pytest.raises(ChecksumMismatchError):
        c.load(c.publish(metadata(), b"\xff" + DATA[1:]), expected())


def test_an_evicted_embedding_is_an_expired_handle():
    c = LocalConnector(capacity_bytes=0, max_held_bytes=1000)
    handle = c.publish(metadata(), DATA)
    c.release(handle.key)
    assert c.hold(handle.key) is None
    with pytest.raises(HandleExpiredError):
        c.load(handle, expected())


def test_holding_is_bounded_and_counted():
    c = LocalConnector(capacity_bytes=100, max_held_bytes=100)
    handle = c.publish(metadata(), DATA)
    assert c.hold(handle.key) == handle
    with pytest.raises(OverloadedError):
        c.publish(metadata(identity="b" * 64), DATA)
    c.release(handle.key)
    assert c.num_held == 1
    c.release(handle.key)
    assert c.num_held == 0


def test_the_wire_form_refuses_absurd_metadata():
    for changes in ({"shape": (0, 4)}, {"grid_thw": (1, -2, -2)}, {"identity": "short"}, {"num_embeddings": 0}):
        text = msgspec.json.encode(msgspec.to_builtins(metadata()) | changes)
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(text, type=EmbeddingMetadata)
