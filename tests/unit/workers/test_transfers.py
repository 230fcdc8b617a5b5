import asyncio
import time

import pytest

from chiasm.cache.label import CacheLabel
from chiasm.errors import HandleExpiredError, LayoutMismatchError, TransferError
from chiasm.protocol.deletion import Deletion
from chiasm.protocol.media import EmbeddingHandle, EmbeddingMetadata
from chiasm.settings import TransferSettings
from chiasm.workers.transfers import TensorMover
from tests.conditions import until
from tests.memory_transport import MemoryTransport, SharedTensors

DATA = bytes(range(16))
LABEL = CacheLabel("ours", frozenset({"a" * 64}))


def handle(address: str, connector: str = "memory") -> EmbeddingHandle:
    metadata = EmbeddingMetadata(
        identity="a" * 64,
        num_embeddings=2,
        shape=(2, 2),
        dtype="float32",
        model_revision="m",
        processor_revision="p",
        checksum="c",
    )
    return EmbeddingHandle(connector=connector, key="k", address=address, metadata=metadata)


@pytest.fixture
def shared():
    return SharedTensors()


@pytest.fixture
def mover(shared):
    mover = TensorMover(MemoryTransport(shared), TransferSettings(ttl_s=50, timeout_s=5))
    yield mover
    mover.close()


async def test_what_is_offered_can_be_taken_until_it_is_dropped(mover, shared):
    offer = await mover.offer("k", DATA, LABEL)
    assert offer.connector == "memory"
    assert 40 < offer.expires_at_s - time.time() <= 50
    assert await mover.take(handle(offer.address), 16, bytes) == DATA
    assert (mover.num_offered, mover.num_taken, mover.taken_bytes) == (1, 1, 16)
    mover.drop("k")
    await until(lambda: not shared.offers)
    with pytest.raises(HandleExpiredError):
        await mover.take(handle(offer.address), 16, bytes)


@pytest.mark.parametrize("is_good", [True, False])
async def test_the_only_reader_releases_what_it_took_if_it_was_the_right_thing(mover, shared, is_good):
    offer = await mover.offer("k", DATA, LABEL)

    def check(data):
        if not is_good:
            raise LayoutMismatchError("no good")

    outcome = await asyncio.gather(
        mover.take(handle(offer.address), 16, check, is_only_reader=True), return_exceptions=True
    )
    assert isinstance(outcome[0], LayoutMismatchError) is not is_good
    await until(lambda: mover.num_offered == (0 if is_good else 1))
    assert shared.num_releases == is_good


async def test_a_word_that_does_not_get_there_is_nobodys_error(mover, shared):
    offer = await mover.offer("k", DATA, LABEL)

    def refuse(address, *, timeout_s):
        shared.num_releases += 1
        raise TransferError("nobody there")

    mover._transport.release = refuse
    assert await mover.take(handle(offer.address), 16, bytes, is_only_reader=True) == DATA
    await until(lambda: shared.num_releases == 1)
    assert mover.num_offered == 1


async def test_sizes_and_kinds_that_do_not_fit_are_refused_before_anything_moves(mover, shared):
    with pytest.raises(LayoutMismatchError):
        await mover.take(handle("at k"), 20, bytes)
    with pytest.raises(TransferError, match="pigeon"):
        await mover.take(handle("at k", "pigeon"), 16, bytes)
    assert shared.num_gets == 0


async def test_what_the_check_finds_wrong_is_not_counted_as_taken(mover):
    offer = await mover.offer("k", DATA, LABEL)

    def check(data):
        raise LayoutMismatchError("no good")

    with pytest.raises(LayoutMismatchError):
        await mover.take(handle(offer.address), 16, check)
    assert mover.num_taken == 0


@pytest.mark.parametrize("is_fresh", [True, False])
async def test_an_offer_nobody_waits_for_is_withdrawn_if_it_is_nobody_elses(mover, shared, is_fresh):
    shared.put_delay_s = 0.2
    task = asyncio.create_task(mover.offer("k", DATA, LABEL, is_fresh=is_fresh))
    await until(lambda: shared.num_puts)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: shared.num_drops if is_fresh else shared.offers)
    assert bool(shared.offers) is not is_fresh


async def test_what_is_offered_can_be_deleted_by_medium_and_by_scope(mover, shared):
    for number, salt in enumerate(("ours", "ours", "theirs")):
        await mover.offer(str(number), DATA, CacheLabel(salt, frozenset({"ab"[number % 2] * 64})))
    assert await mover.forget(Deletion(identity="c" * 64)) == 0
    assert await mover.forget(Deletion(identity="a" * 64, cache_salt="theirs")) == 1
    assert set(shared.offers) == {"0", "1"}
    assert await mover.forget(Deletion(identity="b" * 64)) == 1
    assert await mover.forget(Deletion(cache_salt="ours")) == 1
    assert not shared.offers


async def test_what_was_taken_for_good_or_has_expired_is_not_deleted_once_more(shared):
    mover = TensorMover(MemoryTransport(shared), TransferSettings(ttl_s=0.01))
    await mover.offer("old", DATA, LABEL)
    await until(lambda: mover.num_offered == 0)
    await mover.offer("new", DATA, LABEL)
    assert set(mover._labels) == {"new"}
    mover.close()


async def test_what_is_being_offered_while_it_is_deleted_is_withdrawn(mover, shared):
    shared.put_delay_s = 0.2
    task = asyncio.create_task(mover.offer("k", DATA, LABEL))
    await until(lambda: shared.num_puts)
    await mover.forget(Deletion(cache_salt="ours"))
    await task
    await until(lambda: not shared.offers)
    assert mover.num_offered == 0


async def test_without_a_transport_a_handle_leads_nowhere():
    mover = TensorMover(None, TransferSettings())
    assert (mover.can_move, mover.num_offered) == (False, 0)
    with pytest.raises(HandleExpiredError):
        await mover.take(handle("at k"), 16, bytes)
    assert await mover.forget(Deletion(cache_salt="ours")) == 0
    mover.close()


async def test_closing_closes_the_transport_and_later_drops_are_harmless(shared):
    transport = MemoryTransport(shared)
    mover = TensorMover(transport, TransferSettings())
    await mover.offer("k", DATA, LABEL)
    mover.close()
    assert transport.is_closed
    assert not shared.offers
    mover.drop("k")
