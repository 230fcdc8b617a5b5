"""Requests that meet no fault: the way they take through each topology, and what is remembered of it."""

import asyncio

import pytest

from chiasm.errors import HandleExpiredError
from chiasm.observability.receipt import attribute
from chiasm.protocol.media import EmbeddingHandle, InlineSource
from tests.unit.routing.fleets import TOPOLOGIES, outcome_of, serving
from tests.unit.routing.scripted import ALL, TTL_S, ask, expected_answer, picture
from tests.unit.routing.virtual_time import run

PATHS = {"agg": "agg", "auto": "agg", "e-pd": "e-pd", "e-p-d": "e-p-d"}


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("forward", ["metadata", "raw"])
@pytest.mark.parametrize("names", ["", "a", "aba", "abcd"])
def test_every_topology_gives_the_same_answer(topology, forward, names):
    async def main():
        async with serving(topology, forward=forward) as fleet:
            request = ask("what is this", *(picture(name) for name in names))
            outcome = await outcome_of(fleet, request)
            assert outcome.error is None
            assert outcome.words == expected_answer(request)
            assert outcome.finished.usage.num_output_tokens == len(outcome.words)
            assert outcome.finished.usage.num_prompt_tokens == 10 + 4 * len(names)
            assert outcome.finished.usage.num_cached_tokens == 0
            assert {one.outcome for one in outcome.route.attempts} == {"ok"}
            if names:
                assert outcome.route.path == PATHS[topology]

    run(main())


@pytest.mark.parametrize(("topology", "consumers"), [("e-pd", ["pd0", "pd1"]), ("e-p-d", ["p0", "p1"])])
def test_prefill_gets_metadata_instead_of_pixels(topology, consumers):
    async def main():
        async with serving(topology) as fleet:
            request = ask("which", picture("a"), picture("b"), picture("a"))
            await outcome_of(fleet, request)
            (sent,) = [one for name in consumers for one in fleet[name].requests]
            assert all(isinstance(item.source, EmbeddingHandle) for item in sent.items)
            assert [item.source.metadata.identity for item in sent.items] == [item.identity for item in request.items]
            assert sent.prompt == request.prompt
            assert not any(fleet[name].encoded for name in consumers)
            assert sorted(fleet["e0"].encoded + fleet["e1"].encoded) == sorted({i.identity for i in request.items})
            totals = fleet.router.stats().totals
            assert (totals["encodes_sent"], totals["encodes_avoided_repeat"]) == (2, 1)

    run(main())


@pytest.mark.parametrize(("roles", "kind"), [(ALL, InlineSource), (("prefill", "decode"), EmbeddingHandle)])
def test_raw_forwarding_sends_the_pixels_again_to_those_who_can_use_them(roles, kind):
    async def main():
        async with serving("e-pd", {"e0": ("encode",), "pd0": roles}, forward="raw") as fleet:
            outcome = await outcome_of(fleet, ask("which", picture("a")))
            (sent,) = fleet["pd0"].requests
            assert isinstance(sent.items[0].source, kind)
            assert outcome.error is None

    run(main())


@pytest.mark.parametrize(("topology", "path"), [("agg", "agg"), ("auto", "agg"), ("e-pd", "pd"), ("e-p-d", "p-d")])
def test_text_takes_the_path_without_an_encoder(topology, path):
    async def main():
        async with serving(topology) as fleet:
            assert (await outcome_of(fleet, ask("which"))).route.path == path

    run(main())


def test_a_prefilling_worker_is_not_made_an_encoder_by_what_it_once_had():
    async def main():
        async with serving("e-pd") as fleet:
            for index in range(3):
                await outcome_of(fleet, ask(f"question {index}", picture("a"), request_id=f"r{index}"))
                for name in ("pd0", "pd1"):
                    fleet[name].cache.clear()
                await asyncio.sleep(3600)
            assert not fleet["pd0"].encoded + fleet["pd1"].encoded
            assert len(fleet["e0"].encoded + fleet["e1"].encoded) <= 2

    run(main())


def test_a_whole_worker_that_had_a_picture_gets_it_by_reference_to_its_bytes():
    async def main():
        async with serving("agg") as fleet:
            for index in range(3):
                await outcome_of(fleet, ask("what", picture("a"), request_id=f"r{index}"))
                await asyncio.sleep(3600)
            totals = fleet.router.stats().totals
            assert totals["encodes_local"] + totals["encodes_avoided_prefix"] + totals["encodes_avoided_embedding"] == 3
            assert len(fleet["w0"].encoded + fleet["w1"].encoded) == totals["encodes_local"]

    run(main())


def test_the_items_of_one_request_are_shared_out_over_the_encoders_and_done_side_by_side():
    async def main():
        async with serving("e-pd") as fleet:
            start_s = asyncio.get_running_loop().time()
            request = ask("which", *(picture(name) for name in "abcd"))
            outcome = await outcome_of(fleet, request)
            assert (len(fleet["e0"].encoded), len(fleet["e1"].encoded)) == (2, 2)
            first_s = min(span.end_s for span in outcome.finished.spans if span.stage == "prefill")
            assert first_s == pytest.approx(2 * 0.04 + 0.02)
            assert asyncio.get_running_loop().time() - start_s < 0.2

    run(main())


def test_prefill_and_decode_get_what_they_need_and_sampling_stays_the_caller_s():
    async def main():
        async with serving("e-p-d") as fleet:
            request = ask("which of them", picture("a"))
            outcome = await outcome_of(fleet, request)
            (prefill,), (decode,) = fleet["p0"].requests, fleet["d0"].requests
            assert (prefill.hands_over_kv, prefill.sampling.max_tokens, prefill.stream) == (True, 1, False)
            assert (decode.hands_over_kv, decode.sampling, decode.stream) == (False, request.sampling, True)
            assert decode.kv is not None
            assert [one.stage for one in outcome.route.attempts] == ["encode", "prefill", "decode"]
            assert not fleet.tensors.kv

    run(main())


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_receipt_accounts_for_the_time_to_the_first_token(topology):
    async def main():
        async with serving(topology) as fleet:
            outcome = await outcome_of(fleet, ask("which", picture("a"), picture("b")))
            spans = outcome.finished.spans
            first_s = max(span.end_s for span in spans if span.stage == "prefill")
            assert sum(attribute(spans, first_s).values()) == pytest.approx(first_s)
            assert attribute(spans, first_s)["prefill"] == pytest.approx(0.02)

    run(main())


def test_a_picture_seen_before_is_neither_encoded_nor_sent_again():
    async def main():
        async with serving("e-pd") as fleet:
            await outcome_of(fleet, ask("first question", picture("a"), request_id="one"))
            outcome = await outcome_of(fleet, ask("second question", picture("a"), request_id="two"))
            assert outcome.route.path == "covered"
            assert [one.stage for one in outcome.route.attempts] == ["prefill"]
            assert len(fleet["e0"].encoded + fleet["e1"].encoded) == 1
            totals = fleet.router.stats().totals
            assert totals["encodes_avoided_embedding"] + totals["encodes_avoided_prefix"] == 1

    run(main())


def test_a_handle_that_has_expired_is_not_used():
    async def main():
        async with serving("e-pd") as fleet:
            await outcome_of(fleet, ask("first question", picture("a"), request_id="one"))
            await asyncio.sleep(3600)
            outcome = await outcome_of(fleet, ask("second", picture("a"), request_id="two"))
            assert {one.outcome for one in outcome.route.attempts} == {"ok"}

    run(main())


def test_a_picture_in_use_is_encoded_once_however_long_that_lasts():
    async def main():
        async with serving("e-pd") as fleet:
            for number in range(12):
                asked = ask(f"question {number}", picture("a"), request_id=f"r{number}")
                assert (await outcome_of(fleet, asked)).words == expected_answer(asked)
                await asyncio.sleep(TTL_S / 3)
            assert len(fleet["e0"].encoded + fleet["e1"].encoded) == 1
            producer = fleet.router.fleet.embeddings.producer(picture("a").identity)
            renewals = [one for one in fleet[producer].ids if one.startswith("renewal-")]
            assert 4 <= len(renewals) <= 12
            assert not fleet.router._parts.encode._renewals
            await asyncio.sleep(TTL_S)
            assert fleet.router.fleet.embeddings.handle(picture("a").identity) is None, "nobody used it"

    run(main())


def test_a_renewal_that_fails_harms_nobody_and_is_not_repeated():
    async def main():
        async with serving("e-pd") as fleet:
            await outcome_of(fleet, ask("first", picture("a"), request_id="r0"))
            producer = fleet[fleet.router.fleet.embeddings.producer(picture("a").identity)]
            producer.faults["encode"] = [HandleExpiredError("evicted"), "hang"]
            await asyncio.sleep(TTL_S / 2 + 1)
            for number in range(1, 4):
                asked = ask("again", picture("a"), request_id=f"r{number}")
                assert (await outcome_of(fleet, asked)).words == expected_answer(asked)
            assert sum(one.startswith("renewal-") for one in producer.ids) == 1
            producer.faults["encode"] = []

    run(main())


def test_requests_with_the_same_picture_at_once_encode_it_once():
    async def main():
        async with serving("e-pd") as fleet:
            asked = [ask(f"question {i}", picture("a"), request_id=f"r{i}") for i in range(5)]
            outcomes = await asyncio.gather(*(outcome_of(fleet, one) for one in asked))
            assert [one.words for one in outcomes] == [expected_answer(one) for one in asked]
            assert len(fleet["e0"].encoded + fleet["e1"].encoded) == 1
            totals = fleet.router.stats().totals
            assert (totals["encodes_sent"], totals["encodes_avoided_in_flight"]) == (1, 4)

    run(main())


@pytest.mark.parametrize("topology", ["agg", "auto", "e-pd", "e-p-d"])
def test_callers_of_different_scopes_share_nothing_and_those_of_one_share(topology):
    async def main():
        async with serving(topology, policy="adaptive") as fleet:
            counts = fleet.router._parts.counts
            for round_ in range(2):
                for salt in ("", "ours", "theirs"):
                    asked = ask("which", picture("a"), request_id=f"{round_}{salt}", cache_salt=salt)
                    assert (await outcome_of(fleet, asked)).words == expected_answer(asked)
                made = counts["encodes_sent"] + counts["encodes_local"]
                avoided = counts["encodes_avoided_embedding"] + counts["encodes_avoided_prefix"]
                assert (made, avoided) == (3, 3 * round_)
            salts = {request.cache_salt for worker in fleet.workers.values() for request in worker.requests}
            assert salts == {"", "ours", "theirs"}

    run(main())


def test_nobody_waits_for_an_encoding_of_another_scope():
    async def main():
        async with serving("e-pd") as fleet:
            asked = [
                ask("which", picture("a"), request_id=f"{salt}{number}", cache_salt=salt)
                for salt in ("ours", "theirs")
                for number in range(3)
            ]
            await asyncio.gather(*(outcome_of(fleet, one) for one in asked))
            totals = fleet.router.stats().totals
            assert (totals["encodes_sent"], totals["encodes_avoided_in_flight"]) == (2, 4)

    run(main())


def test_the_first_event_and_the_last_but_one_are_routes():
    async def main():
        async with serving("e-pd") as fleet:
            kinds = [type(event).__name__ async for event in fleet.router.generate(ask("one two", picture("a")))]
            assert kinds[0] == "RouteTaken"
            assert kinds[-2:] == ["RouteTaken", "RequestFinished"]

    run(main())
