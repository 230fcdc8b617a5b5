"""Events of a server's cache, in order or not: what routing forgets, and what is counted."""

import asyncio

import msgspec
import pytest

from chiasm.errors import EngineError
from chiasm.protocol.generation import Usage
from chiasm.routing.coverage.prefixes import PrefixOwners, prefixes_of
from chiasm.routing.vllm.cache_events import Follower
from chiasm.routing.vllm.cache_events.source import EventsAddress
from tests.unit.routing.vllm.served import chat

TEXT = "What do you see? " * 60  # two units of hashing
SIZE = 16


def stored(call, *blocks, parent=None, **fields):
    body = {"type": "BlockStored", "block_hashes": list(blocks), "parent_block_hash": parent, "block_size": SIZE}
    return body | {"token_ids": [1], "lora_id": None, "medium": "GPU", "lora_name": None, "session_id": call} | fields


def removed(*blocks, **fields):
    return {"type": "BlockRemoved", "block_hashes": list(blocks), "medium": "GPU"} | fields


CLEARED = {"type": "AllBlocksCleared"}


def batch(*events, ts=1.0):
    return msgspec.msgpack.encode([ts, list(events), 0])


class Script:
    """A server's events: what arrives, and what it still has for those who ask."""

    def __init__(self, *arriving, kept=(), fails=False):
        self.arriving = list(arriving)
        self.kept = list(kept)
        self.fails = fails
        self.is_closed = False
        self.is_read = asyncio.Event()

    async def received(self):
        if not self.arriving:
            self.is_read.set()
            await asyncio.Event().wait()
        one = self.arriving.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    async def replayed(self, first, until):
        if self.fails:
            raise EngineError("nobody answers")
        kept = dict(self.kept)
        while first < until and first in kept:
            yield first, kept[first]
            first += 1

    def close(self):
        self.is_closed = True


def followed(*arriving, kept=(), fails=False):
    """Starts that a worker is still known to have, of a prompt of 64 tokens that it served; and what was counted."""
    request = chat(TEXT)
    owners, prefixes = PrefixOwners(), prefixes_of(request)
    owners.served(prefixes, "w")

    async def follow():
        source, follower = Script(*arriving, kept=kept, fails=fails), Follower()
        follower.served(request, Usage(num_prompt_tokens=64, num_output_tokens=1))
        follower.start(source, lambda keys: owners.lost("w", keys))
        async with asyncio.timeout(5):
            await source.is_read.wait()
        await follower.aclose()
        assert source.is_closed
        return follower.totals

    totals = asyncio.run(follow())
    found = owners.longest(prefixes).get("w")
    return (found.num_chars if found is not None else 0), totals


WHOLE = 64 // SIZE
PROMPT = (0, batch(stored("r", *range(1, 1 + WHOLE))))
NUM_CHARS = len(TEXT)


def test_what_is_stored_is_known_and_what_is_evicted_is_forgotten():
    assert followed(PROMPT)[0] == NUM_CHARS
    found, totals = followed(PROMPT, (1, batch(removed(WHOLE))))
    assert 0 < found < NUM_CHARS, "the prompt's first half is still there"
    assert totals["kv_starts_forgotten"] == 1
    assert followed(PROMPT, (1, batch(removed(1))))[0] == 0


def test_a_cleared_cache_is_forgotten_as_a_whole():
    found, totals = followed(PROMPT, (1, batch(CLEARED)))
    assert (found, totals["kv_caches_forgotten"]) == (0, 1)


def test_other_groups_and_slower_memory_say_nothing_about_what_is_at_hand():
    others = batch(removed(1, group_idx=1), removed(1, medium="CPU"))
    assert followed(PROMPT, (1, others))[0] == NUM_CHARS


def test_a_gap_is_filled_from_the_servers_memory_in_order():
    kept = [(1, batch(removed(WHOLE))), (2, batch(stored("x", 50))), (3, batch(stored("y", 60)))]
    found, totals = followed(PROMPT, kept[2], *kept[1:], kept=[PROMPT, *kept])
    assert 0 < found < NUM_CHARS
    assert (totals["kv_event_batches_replayed"], totals["kv_event_batches_missed"]) == (2, 0)
    assert totals["kv_event_batches"] == 4, "what comes again is not counted again"


UNUSABLE = [{}, {"fails": True}, {"kept": [(2, batch())]}, {"kept": [(1, b"?"), (2, batch())]}]


@pytest.mark.parametrize("answers", UNUSABLE)
def test_a_gap_that_stays_leaves_routing_to_book_keeping_and_is_counted(answers):
    found, totals = followed(PROMPT, (3, batch()), (4, batch(removed(1))), **answers)
    assert found == NUM_CHARS, "whether it is evicted is not known any more"
    assert totals["kv_event_batches_missed"] == 2


def test_what_a_server_still_has_counts_until_its_memory_ends():
    found, totals = followed(PROMPT, (4, batch()), kept=[(1, batch(removed(WHOLE))), (2, batch()), (9, batch())])
    assert 0 < found < NUM_CHARS, "what was evicted is evicted, whatever comes after it"
    assert (totals["kv_event_batches_replayed"], totals["kv_event_batches_missed"]) == (2, 1)


def test_what_is_seen_anew_after_a_gap_counts_again():
    found, totals = followed(PROMPT, (3, batch(stored("r", *range(1, 1 + WHOLE)))), (4, batch(removed(1))))
    assert (found, totals["kv_event_batches_missed"]) == (NUM_CHARS, 2), "its call was forgotten, not only its blocks"


def test_a_server_that_counts_from_the_beginning_has_lost_everything():
    found, totals = followed(PROMPT, (1, batch(ts=2.0)), (0, batch(stored("x", 9), ts=3.0)))
    assert (found, totals["kv_caches_forgotten"]) == (0, 1)


RUBBISH = [
    b"",
    b"\xff",
    msgspec.msgpack.encode({"a": 1}),
    msgspec.msgpack.encode([1.0, [7]]),
    batch(ts=float("inf")),
    batch(stored("r", 1, block_size=0)),
    batch(stored("r", b"x" * 65)),
]


@pytest.mark.parametrize("rubbish", RUBBISH)
def test_what_cannot_be_understood_counts_as_missed(rubbish):
    found, totals = followed(PROMPT, (1, rubbish), (2, batch(removed(1))))
    assert (found, totals["kv_event_batches_missed"]) == (NUM_CHARS, 1)


def test_a_number_far_ahead_is_a_gap_like_others():
    found, totals = followed(PROMPT, (2**62, batch(ts=2.0)), (1, batch(ts=3.0)), kept=[PROMPT])
    assert totals["kv_event_batches_missed"] == 2**62 - 1
    assert (found, totals["kv_caches_forgotten"]) == (0, 1), "the next one is of an engine that was started again"


def test_a_cache_is_forgotten_once_for_each_batch_however_often_that_says_so():
    found, totals = followed(PROMPT, (1, batch(*[CLEARED] * 100, stored("x", 1))))
    assert (found, totals["kv_caches_forgotten"]) == (0, 1)


def test_a_fault_is_logged_and_leaves_routing_to_book_keeping(monkeypatch, caplog):
    monkeypatch.setattr("chiasm.routing.vllm.cache_events.follower._RETRY_PAUSE_S", 0)
    found, totals = followed(PROMPT, ValueError("a fault"), (1, batch(removed(1))), (2, batch(CLEARED)))
    assert (found, totals["kv_event_batches_missed"], totals["kv_caches_forgotten"]) == (0, 1, 1)
    assert "a fault" in caplog.text


def test_many_gaps_are_one_warning(caplog):
    followed(PROMPT, *((number, batch()) for number in range(3, 30, 2)))
    assert len(caplog.records) == 1


def test_others_get_their_turns_while_events_are_there():
    async def turns():
        source, follower, num_turns = Script(*((number, batch()) for number in range(100))), Follower(), 0
        follower.start(source, lambda _: None)
        while not source.is_read.is_set():
            await asyncio.sleep(0)
            num_turns += 1
        await follower.aclose()
        return num_turns

    assert asyncio.run(turns()) >= 100


def test_ranks_publish_on_the_ports_after_the_first():
    address = EventsAddress("tcp://a:5557", "tcp://a:5657")
    assert address.of_rank(2) == EventsAddress("tcp://a:5559", "tcp://a:5659")
    assert EventsAddress("ipc:///run/a.tcp:1").of_rank(1) == EventsAddress("ipc:///run/a.tcp:2")
    assert EventsAddress("ipc:///run/a.kv").of_rank(0) == EventsAddress("ipc:///run/a.kv")


def test_a_name_that_is_too_long_for_a_call_is_nobodys():
    long = batch(stored("x" * 2**20, *range(1, 1 + WHOLE)))
    found, totals = followed((0, long), (1, PROMPT[1]), (2, batch(removed(1))))
    assert (found, totals["kv_event_batches_missed"]) == (0, 0)
