"""What one router learns about contents is known to another one, and only what is of use to it."""

import asyncio

import msgspec
import pytest

from chiasm.errors import QuarantinedError
from chiasm.protocol.deletion import Deletion
from chiasm.routing.coverage.notes import _MAX_PENDING
from chiasm.routing.coverage.prefixes import prefixes_of
from tests.unit.routing.fleets import Fleet, outcome_of
from tests.unit.routing.scripted import ALL, ask, picture
from tests.unit.routing.virtual_time import run

SALT = "ours"


MANY_BYTES = 2**20


def two(shared=("w0", "w1"), **settings):
    """Two gateways' routers over workers of the same names."""
    fleets = [Fleet("auto", {"w0": ALL, "w1": ALL}, **settings) for _ in range(2)]
    for fleet in fleets:
        for name in shared:
            fleet.member(name).is_shared = True
    return fleets


def tell(source, target):
    notes = source.router.take_notes(1000, MANY_BYTES)
    return 0 if notes is None else target.router.learn(notes)


def test_the_second_question_about_a_picture_goes_to_the_same_worker():
    async def ask_two_gateways():
        first, second = two(policy="content")
        for number in range(4):
            item = picture(f"p{number}")
            one = await outcome_of(first, ask("what is this", item, request_id=f"r{number}", cache_salt=SALT))
            assert tell(first, second) > 0
            other = await outcome_of(
                second, ask("and what color has it", item, request_id=f"s{number}", cache_salt=SALT)
            )
            assert other.route.attempts[-1].worker == one.route.attempts[-1].worker
        assert second.router.stats().totals["encodes_avoided_prefix"] == 4
        assert tell(second, second) > 0, "it has news of its own"
        assert tell(second, first) == 0, "what was learned from others is not told again"

    run(ask_two_gateways())


def test_offers_of_encoders_are_known_to_others():
    async def offer():
        fleets = [Fleet("e-pd") for _ in range(2)]
        for fleet in fleets:
            for member in fleet.router.fleet.members:
                member.is_shared = True
        await outcome_of(fleets[0], ask("what", picture("a"), cache_salt=SALT))
        assert tell(*fleets) > 0
        indexes = [fleet.router.fleet.embeddings for fleet in fleets]
        identity = picture("a").identity
        assert indexes[1].handle(identity, SALT) == indexes[0].handle(identity, SALT) is not None
        assert indexes[1].holders(identity, SALT) == indexes[0].holders(identity, SALT)
        assert indexes[1].handle(identity, "") is None, "under its own salt alone"

    run(offer())


def test_workers_of_one_gateway_alone_are_no_news():
    async def serve():
        first, second = two(shared=("w0",))
        for name in ("w0", "w1"):
            first.router.fleet.prefixes.served(prefixes_of(ask("what is this", picture("a"))), name)
        assert tell(first, second) == 1
        second.member("w0").is_shared = False
        first.router.fleet.prefixes.served(prefixes_of(ask("what is this", picture("a"))), "w0")
        assert tell(first, second) == 0, "nor are they believed"

    run(serve())


def test_what_is_not_fetched_is_bounded_and_a_deletion_drops_it():
    async def serve():
        first, _ = two()
        embeddings = first.router.fleet.embeddings
        for number in range(_MAX_PENDING + 10):
            embeddings.held(f"{number:064x}", "w0", SALT)
        assert len(msgspec.msgpack.decode(first.router.take_notes(2 * _MAX_PENDING, MANY_BYTES))) == _MAX_PENDING
        embeddings.held("ab" * 32, "w0", SALT)
        assert first.router.forget_known(Deletion(cache_salt=SALT)) > 0
        assert first.router.take_notes(10, MANY_BYTES) is None

    run(serve())


def test_notes_are_taken_by_bytes_too_and_one_that_is_too_large_is_dropped():
    async def serve():
        first, _ = two()
        for number in range(4):
            first.router.fleet.embeddings.held(f"{number:064x}", "w0", SALT)
        size = len(first.router.take_notes(1, MANY_BYTES))
        assert len(msgspec.msgpack.decode(first.router.take_notes(10, 2 * size))) == 2
        assert first.router.take_notes(10, size // 2) is None
        assert first.router.take_notes(10, MANY_BYTES) is None, "it does not come again and again"

    run(serve())


def test_long_prompts_are_told_in_few_words():
    async def serve():
        first, _ = two()
        prefixes = prefixes_of(ask("word " * 50_000, *(picture(f"p{number}") for number in range(40))))
        first.router.fleet.prefixes.served(prefixes, "w0")
        assert len(first.router.take_notes(10, MANY_BYTES)) < 40_000

    run(serve())


@pytest.mark.parametrize("notes", [b"", b"\x91\x91", b"nonsense", b"\x91" * 5000, b"\x91\x81\xa4type\xa4held"])
def test_notes_that_cannot_be_understood_say_nothing(notes):
    async def learn():
        assert two()[0].router.learn(notes) == 0

    run(learn())


def test_kinds_of_a_newer_gateway_are_skipped_and_the_rest_is_learned():
    async def learn():
        first, second = two()
        first.router.fleet.embeddings.held("ab" * 32, "w0", SALT)
        known = msgspec.msgpack.decode(first.router.take_notes(10, MANY_BYTES))
        mixed = [{"type": "of_tomorrow", "worker": "w0"}, *known, 5, known[0] | {"worker": 5}]
        assert second.router.learn(msgspec.msgpack.encode(mixed)) == 1
        assert second.router.fleet.embeddings.holders("ab" * 32, SALT)
        assert second.router.stats().totals["hints_skipped"] == 3

    run(learn())


def test_a_worker_is_drained_and_gets_work_again_when_it_is_proven():
    async def drain():
        fleet, _ = two()
        assert fleet.router.drain("w0")
        assert fleet.member("w0").state == "draining"
        assert fleet.router.drain("w0", is_over=True)
        assert fleet.member("w0").state == "starting"
        assert not fleet.router.drain("nobody")
        fleet.member("w0").is_shared = False
        assert not fleet.router.drain("w0", is_told=True), "another gateway has a worker of this name"
        fleet.router.drain("w1", is_over=True)
        assert fleet.member("w1").state == "ready", "it was not drained"

    run(drain())


def test_what_workers_died_of_is_tried_at_no_other_gateway_until_somebody_serves_it():
    async def die():
        first, second = two(quarantine_deaths=2)
        suspected = first.router._parts.quarantine, second.router._parts.quarantine
        suspected[0].died(("picture",), "w0")
        assert tell(first, second) == 1
        suspected[1].check(("picture",))
        suspected[1].died(("picture",), "w1")
        with pytest.raises(QuarantinedError):
            suspected[1].check(("picture",))
        suspected[0].check(("picture",))
        assert tell(second, first) == 1, "what it was told is not told again"
        with pytest.raises(QuarantinedError):
            suspected[0].check(("picture",))
        suspected[0].served(("picture", "another"))
        assert tell(first, second) == 1
        suspected[1].check(("picture",))
        suspected[0].served(("another",))
        assert tell(first, second) == 0, "nobody suspected it"

    run(die())


def test_a_death_that_two_gateways_saw_counts_once():
    async def die():
        fleets = two(quarantine_deaths=2)
        for fleet in fleets:
            fleet.router._parts.quarantine.died(("picture",), "w0")
        await asyncio.sleep(1.0)
        assert tell(*fleets) == tell(*reversed(fleets)) == 1
        for fleet in fleets:
            fleet.router._parts.quarantine.check(("picture",))

    run(die())
