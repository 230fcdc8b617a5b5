"""Prompts computed while pictures are encoded elsewhere: earlier, with the same answers, and safe from every fault."""

import asyncio
from contextlib import aclosing

import msgspec
import pytest

from chiasm.errors import ChecksumMismatchError, EngineStepError, MediaDecodeError, OverloadedError
from chiasm.observability.receipt import attribute
from chiasm.protocol.media import EmbeddingHandle, LateSource
from chiasm.routing.costs.model import StageCosts
from chiasm.routing.coverage.prefixes import Prefix
from chiasm.routing.overlap import MAX_PARTS, parts_of, saved_s
from chiasm.routing.plan import EncodeGroup
from chiasm.routing.view import ItemView, Job
from tests.unit.routing.fleets import outcome_of, serving
from tests.unit.routing.scripted import ALL, ask, expected_answer, picture
from tests.unit.routing.virtual_time import run

ONE_ENCODER = {"e0": ("encode",), "pd0": ("prefill", "decode")}
TIMEOUT_S = 12.0
TOPOLOGIES = ("e-pd", "e-p-d")


def many(count=4, request_id="r", **fields):
    pictures = [picture(f"{request_id}{number}") for number in range(count)]
    return ask("which", *pictures, request_id=request_id, timeout_s=TIMEOUT_S, **fields)


async def first_token_s(fleet, request):
    start_s = asyncio.get_running_loop().time()
    async with aclosing(fleet.router.generate(request)) as events:
        async for event in events:
            if hasattr(event, "token_ids"):
                return asyncio.get_running_loop().time() - start_s
    raise AssertionError("no token came")


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_first_token_comes_earlier_and_the_answer_is_the_same(topology):
    async def main():
        took_s = {}
        for overlap in ("never", "always"):
            async with serving(topology, takes_late=True, overlap=overlap) as fleet:
                for worker in fleet.workers.values():
                    worker.prefill_s = 0.1
                outcome = await outcome_of(fleet, many())
                assert outcome.words == expected_answer(many())
                took_s[overlap] = max(span.end_s for span in outcome.finished.spans if span.stage == "prefill")
        assert took_s["always"] <= took_s["never"] - 0.05

    run(main())


def test_the_prompt_goes_ahead_and_handles_follow_in_order():
    async def main():
        async with serving("e-pd", ONE_ENCODER, takes_late=True, overlap="always") as fleet:
            request = many(6)
            outcome = await outcome_of(fleet, request)
            assert outcome.words == expected_answer(request)
            (asked,) = fleet["pd0"].requests
            assert all(isinstance(item.source, LateSource) for item in asked.items)
            supplied = fleet["pd0"].supplied
            assert [sorted(one.handles) for one in supplied] == [[0, 1], [2, 3], [4, 5]]
            assert all(isinstance(handle, EmbeddingHandle) for one in supplied for handle in one.handles.values())
            assert fleet.router.stats().totals["encodes_sent"] == 6

    run(main())


def test_a_repeated_picture_is_supplied_wherever_it_stands():
    async def main():
        async with serving("e-pd", ONE_ENCODER, takes_late=True, overlap="always") as fleet:
            a, b = picture("a"), picture("b")
            request = ask("which", a, b, a, a, timeout_s=TIMEOUT_S)
            assert (await outcome_of(fleet, request)).words == expected_answer(request)
            assert [sorted(one.handles) for one in fleet["pd0"].supplied] == [[0, 2, 3], [1]]
            assert len(fleet["e0"].encoded) == 2

    run(main())


@pytest.mark.parametrize("takes_late", [False, True])
def test_a_worker_that_takes_no_late_embeddings_gets_everything_at_once(takes_late):
    async def main():
        overlap = "never" if takes_late else "always"
        async with serving("e-pd", ONE_ENCODER, takes_late=takes_late, overlap=overlap) as fleet:
            await outcome_of(fleet, many())
            (asked,) = fleet["pd0"].requests
            assert all(isinstance(item.source, EmbeddingHandle) for item in asked.items)
            assert fleet["pd0"].supplied == []

    run(main())


def test_every_instant_is_accounted_for_and_stages_overlap():
    async def main():
        async with serving("e-pd", ONE_ENCODER, takes_late=True, overlap="always") as fleet:
            fleet["pd0"].prefill_s, fleet["pd0"].hop_s, fleet["e0"].hop_s = 0.1, 0.003, 0.002
            start_s = asyncio.get_running_loop().time()
            request, first_s, finished = many(), 0.0, None
            async with aclosing(fleet.router.generate(request)) as events:
                async for event in events:
                    if hasattr(event, "token_ids") and not first_s:
                        first_s = asyncio.get_running_loop().time() - start_s
                    finished = event if hasattr(event, "usage") else finished
            charged = attribute(finished.spans, first_s)
            assert sum(charged.values()) == pytest.approx(first_s)
            prefills = [span for span in finished.spans if span.stage == "prefill"]
            encodes = [span for span in finished.spans if span.stage == "encode"]
            assert any(p.start_s < e.end_s and e.start_s < p.end_s for p in prefills for e in encodes)
            assert charged["encode"] > 0

    run(main())


ENCODE_FAULTS = {
    "dies": "die",
    "hangs": "hang",
    "fails a step": EngineStepError("step"),
    "is full": OverloadedError("full"),
    "loses the embedding": "lose",
    "corrupts it": "corrupt",
}


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("call", [0, 1])
@pytest.mark.parametrize("fault", ENCODE_FAULTS)
def test_a_late_picture_goes_down_the_ladder(topology, call, fault):
    async def main():
        async with serving(topology, takes_late=True, overlap="always") as fleet:
            fleet["e0"].faults["encode"] = [None] * call + [ENCODE_FAULTS[fault]]
            text = ask("some text", request_id="n", timeout_s=TIMEOUT_S)
            request = many(4)
            outcome, other = await asyncio.gather(outcome_of(fleet, request), outcome_of(fleet, text))
            assert outcome.error is None
            assert outcome.words == expected_answer(request)
            assert other.words == expected_answer(text)
            assert [one for one in outcome.attempts if one[2] != "ok"]
            is_about_the_embedding = fault in ("loses the embedding", "corrupts it")
            blamed = {one[1] for one in outcome.attempts if one[2] != "ok"}
            assert is_about_the_embedding or blamed == {"e0"}
            ready = {name for name in fleet.workers if fleet.member(name).state == "ready"}
            assert ready >= {name for name in fleet.workers if name != "e0"}

    run(main())


@pytest.mark.parametrize("fault", ["die", "hang", EngineStepError("step"), ChecksumMismatchError("lost on the way")])
def test_a_worker_that_fails_with_pictures_on_their_way_is_replaced_and_nothing_is_encoded_twice(fault):
    async def main():
        async with serving("e-pd", takes_late=True, overlap="always") as fleet:
            fleet["pd0"].faults["prefill"] = [fault]
            request = many(4)
            outcome = await outcome_of(fleet, request)
            assert outcome.error is None
            assert outcome.words == expected_answer(request)
            if not isinstance(fault, ChecksumMismatchError):
                assert len(fleet["e0"].encoded) + len(fleet["e1"].encoded) == 4

    run(main())


def test_pictures_that_never_come_end_the_request_by_its_deadline():
    async def main():
        async with serving("e-pd", takes_late=True, overlap="always", local_encode="never") as fleet:
            for name in ("e0", "e1"):
                fleet[name].faults["encode"] = [None] + ["hang"] * 8
            start_s = asyncio.get_running_loop().time()
            text = ask("some text", request_id="n", timeout_s=TIMEOUT_S)
            outcome, other = await asyncio.gather(outcome_of(fleet, many(6)), outcome_of(fleet, text))
            assert outcome.error is not None
            assert outcome.words == []
            assert other.words == expected_answer(text)
            assert asyncio.get_running_loop().time() - start_s <= TIMEOUT_S + 0.5
            assert {fleet.member(name).state for name in ("pd0", "pd1")} == {"ready"}

    run(main())


def test_a_broken_picture_is_the_callers_fault_and_nobodys_else():
    async def main():
        async with serving("e-pd", takes_late=True, overlap="always") as fleet:
            fleet["e1"].faults["encode"] = [MediaDecodeError("Media item 0: broken", item=0)]
            outcome = await outcome_of(fleet, many(4))
            assert isinstance(outcome.error, MediaDecodeError)
            assert outcome.error.item == 1  # the first that the other encoder was asked for
            assert {one.state for one in fleet.router.fleet.members} == {"ready"}

    run(main())


@pytest.mark.parametrize("after_s", [0.001, 0.05, 0.1, 0.15, 0.5])
def test_a_caller_who_leaves_ends_everything(after_s):
    async def main():
        async with serving("e-pd", ONE_ENCODER, takes_late=True, overlap="always") as fleet:
            task = asyncio.ensure_future(outcome_of(fleet, many(6)))
            await asyncio.sleep(after_s)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.sleep(0.1)
            assert fleet["e0"].num_open == fleet["pd0"].num_open == 0

    run(main())


def job(places, *, num_chars=0, side=448, may_overlap=("p",)):
    """Pictures one after the other, with so many characters before each."""
    names = [f"i{number}" for number in range(places)]
    starts = {
        name: Prefix("k", num_chars * (number + 1), tuple(names[: number + 1])) for number, name in enumerate(names)
    }
    items = [ItemView(identity=name, positions=(number,), num_pixels=side**2) for number, name in enumerate(names)]
    return Job(items=tuple(items), starts=starts, may_overlap=frozenset(may_overlap))


def groups(*shares):
    return [EncodeGroup(f"e{number}", tuple(f"i{one}" for one in share)) for number, share in enumerate(shares)]


@pytest.mark.parametrize(
    ("what", "asked", "shares", "pays"),
    [
        ("one picture at the start", job(1), [[0]], False),
        ("one picture behind a long text", job(1, num_chars=4000), [[0]], True),
        ("several pictures", job(4), [[0, 1, 2, 3]], True),
        ("small pictures", job(2, side=56), [[0, 1]], False),
        ("one picture each on two encoders", job(2), [[0], [1]], False),
        ("two pictures each on two encoders", job(4), [[0, 2], [1, 3]], True),
        ("a worker that cannot", job(4, may_overlap=()), [[0, 1, 2, 3]], False),
        ("nothing to encode", job(4), [], False),
    ],
)
def test_overlap_is_predicted_to_pay_where_enough_of_the_prompt_stands_before_the_last_part(what, asked, shares, pays):
    costs = StageCosts()
    saved = saved_s(asked, costs, "p", groups(*shares))
    assert (saved > 0) is pays, what
    assert saved < costs.prefill_s("p", costs.num_tokens(8000, [448**2] * 4))


def test_what_a_worker_knows_already_is_not_computed_ahead():
    asked = job(1, num_chars=4000)
    known = msgspec.structs.replace(asked, known={"p": Prefix("k", 4000, ())})
    assert saved_s(known, StageCosts(), "p", groups([0])) == 0.0


@pytest.mark.parametrize("count", range(1, 12))
def test_parts_are_few_and_keep_the_order(count):
    group = EncodeGroup("e", tuple(f"i{number}" for number in range(count)))
    parts = parts_of(group)
    assert len(parts) <= MAX_PARTS
    assert tuple(identity for part in parts for identity in part.identities) == group.identities
    assert all(part.worker == "e" for part in parts)


def test_auto_overlaps_only_what_pays():
    async def main():
        async with serving("e-pd", ONE_ENCODER, takes_late=True) as fleet:
            assert (await outcome_of(fleet, many(1, "one"))).error is None
            assert fleet["pd0"].supplied == []
            assert (await outcome_of(fleet, many(12, "twelve"))).error is None
            assert len(fleet["pd0"].supplied) == 4

    run(main())


def test_auto_splits_among_whole_workers_and_overlaps():
    async def main():
        settings = {"takes_late": True, "policy": "adaptive", "overlap": "always"}
        async with serving("auto", {"w0": ALL, "w1": ALL}, **settings) as fleet:
            request = many(6)
            assert (await outcome_of(fleet, request)).words == expected_answer(request)

    run(main())
