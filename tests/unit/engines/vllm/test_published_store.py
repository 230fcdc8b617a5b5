"""A producer offers as much as it may, drops the oldest, and its receipts never promise what is not there."""

import os

import pytest

from chiasm.connectors.base import checksum
from chiasm.engines.vllm.ec.engine_folder import engine_folder
from chiasm.engines.vllm.ec.published_store import PublishedStore
from chiasm.engines.vllm.ec.receipts import ReceiptWriter, read_receipt
from chiasm.errors import InvalidSettingError
from tests.unit.engines.vllm.embeddings import LAYOUT, NUM_BYTES, Memory, embedding


@pytest.fixture
def folder(tmp_path):
    return engine_folder(str(tmp_path), "engine/0")


class Producer:
    def __init__(self, folder, max_bytes=2 * NUM_BYTES, hold_s=5.0):
        self.now = 100.0
        self.folder = folder
        self.memory = Memory(max_bytes)
        self.store = PublishedStore(
            self.memory,
            ReceiptWriter(folder),
            ttl_s=60.0,
            hold_s=hold_s,
            max_bytes=max_bytes,
            clock=lambda: self.now,
        )

    def publish(self, identity, seed=1):
        self.store.publish(identity, LAYOUT, embedding(seed))

    def receipt(self, identity):
        return read_receipt(self.folder, identity, self.now)


@pytest.fixture
def producer(folder):
    made = Producer(folder)
    yield made
    made.store.close()


def test_a_receipt_says_where_and_what(producer):
    producer.publish("a")
    said = producer.receipt("a").announcement
    assert (said.address, said.layout, said.checksum) == ("own/a", LAYOUT, checksum(embedding(1)))
    assert producer.receipt("b") is None


def test_the_oldest_makes_room_once_its_consumers_had_time(producer):
    for identity in ("a", "b"):
        producer.publish(identity)
    producer.publish("c")
    assert producer.receipt("c").error == "overloaded"
    producer.now += 6.0
    producer.publish("a")  # asked for again
    producer.publish("c")
    assert set(producer.memory.own) == {"a", "c"}
    assert producer.receipt("b") is None
    assert producer.receipt("c").totals["evicted"] == 1
    assert producer.receipt("c").totals["refused_offers"] == 1


def test_what_can_never_fit_drops_nothing(folder):
    producer = Producer(folder, max_bytes=NUM_BYTES - 1, hold_s=0.0)
    producer.publish("a")
    assert producer.receipt("a").error == "overloaded"
    producer.store.close()


def test_receipts_expire_with_the_offer(producer):
    producer.publish("a")
    producer.now += 59.0
    assert producer.receipt("a") is not None
    producer.now += 2.0
    assert producer.receipt("a") is None
    producer.publish("b")
    assert len(list(producer.folder.iterdir())) == 2  # b's, and the lock


def test_an_identity_may_be_any_text(producer):
    for identity in ("../../etc/passwd", "a/b", "", "x" * 500, "\x00"):
        producer.publish(identity)
        producer.now += 6.0
        assert producer.receipt(identity).announcement is not None
    assert all(path.parent == producer.folder for path in producer.folder.iterdir())


def test_half_a_receipt_is_none(producer):
    producer.publish("a")
    next(path for path in producer.folder.iterdir() if path.name != "owner").write_bytes(b'{"expires_at": 1')
    assert producer.receipt("a") is None


def test_a_folder_belongs_to_one_engine_and_dead_ones_are_removed(folder):
    writer = ReceiptWriter(folder)
    with pytest.raises(InvalidSettingError, match="Another engine"):
        ReceiptWriter(folder)
    os.close(writer._owned._lock)  # as when its process was killed
    other = ReceiptWriter(folder.parent / "ec-other")
    assert not folder.exists()
    other.close()
    assert list(folder.parent.iterdir()) == []


def test_a_folder_that_others_may_write_to_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(InvalidSettingError):
        ReceiptWriter(engine_folder(str(tmp_path), "e"))


def test_all_offers_can_be_taken_back(producer):
    producer.publish("a")
    producer.publish("b")
    assert producer.store.forget() == 2
    assert producer.receipt("a") is None
    assert not producer.memory.own
    assert producer.store.forget() == 0
    producer.publish("a")
    assert producer.receipt("a").announcement is not None
