"""What is recognised of a prompt without a tokenizer, and where embeddings are known to be."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chiasm.protocol.deletion import Deletion
from chiasm.protocol.generation import (
    ChatPrompt,
    GenerateRequest,
    ItemPart,
    Message,
    TextPart,
    TextPrompt,
    TokensPrompt,
)
from chiasm.routing.coverage.embeddings import EmbeddingIndex
from chiasm.routing.coverage.prefixes import PrefixOwners, prefixes_of
from tests.unit.routing.scripted import ScriptedWorker, Tensors, picture
from tests.unit.routing.virtual_time import LoopClock, run


def chat(*turns, items=()):
    """Turns of parts: a string is text, a number an item."""
    messages = tuple(
        Message(
            "user" if index % 2 == 0 else "assistant",
            tuple(TextPart(p) if isinstance(p, str) else ItemPart(p) for p in parts),
        )
        for index, parts in enumerate(turns)
    )
    return GenerateRequest(request_id="r", prompt=ChatPrompt(messages), items=items)


def common(first, second):
    """How many starts two requests share, and the last of them."""
    shared = [a for a, b in zip(prefixes_of(first), prefixes_of(second), strict=False) if a.key == b.key]
    return shared[-1] if shared else None


A, B = picture("a"), picture("b")


def test_another_question_on_the_same_picture_shares_the_picture():
    shared = common(chat([0, "what is this"], items=(A,)), chat([0, "how many are there"], items=(A,)))
    assert (shared.items, shared.num_chars) == ((A.identity,), 0)


@pytest.mark.parametrize(
    "other",
    [
        chat([0, "x"], items=(B,)),
        chat(["x", 0], items=(A,)),
        chat([0, 0, "x"], items=(B,)),
        chat([1, 0, "x"], items=(A, B)),
    ],
)
def test_another_picture_or_order_shares_nothing(other):
    shared = common(chat([0, "x"], items=(A,)), other)
    assert shared is None or not shared.items


def test_a_longer_conversation_shares_all_of_the_shorter_one():
    first = chat([0, "hello"], items=(A,))
    second = chat([0, "hello"], ["an answer"], ["more"], items=(A,))
    assert common(first, second) == prefixes_of(first)[-1]


def test_roles_and_kinds_of_prompt_are_told_apart():
    system = GenerateRequest(request_id="r", prompt=ChatPrompt((Message("system", (TextPart("x"),)),)))
    keys = {
        prefixes_of(one)[-1].key
        for one in (
            chat(["x"]),
            system,
            GenerateRequest(request_id="r", prompt=TextPrompt("x")),
            GenerateRequest(request_id="r", prompt=TokensPrompt((1, 2))),
            GenerateRequest(request_id="r", prompt=TokensPrompt((1, 3))),
        )
    }
    assert len(keys) == 5


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=3000), st.text(max_size=600), st.text(max_size=600))
def test_long_texts_share_their_starts(start, one, two):
    first, second = (GenerateRequest(request_id="r", prompt=TextPrompt(start + end)) for end in (one, two))
    shared = common(first, second)
    assert (shared.num_chars if shared else 0) >= len(start) // 512 * 512
    assert prefixes_of(first)[-1:] == [] or prefixes_of(first)[-1].num_chars == len(start + one)


def test_of_each_worker_the_longest_start_that_it_served_is_known():
    owners = PrefixOwners()
    short, long = (prefixes_of(chat(*turns, items=(A,))) for turns in ([[0, "x"]], [[0, "x"], ["y"], ["z"]]))
    assert owners.longest(long) == {}
    owners.served(long, "w0")
    owners.served(short, "w1")
    assert owners.longest(long) == {"w0": long[-1], "w1": short[-1]}
    assert owners.longest(short) == {"w1": short[-1], "w0": short[-1]}
    owners.forget_worker("w0")
    assert owners.longest(long) == {"w1": short[-1]}


def test_a_role_alone_is_no_start_worth_knowing():
    owners = PrefixOwners()
    owners.served(prefixes_of(chat(["abc"])), "w0")
    assert owners.longest(prefixes_of(chat(["other"]))) == {}


def test_memory_is_bounded_and_what_is_used_stays():
    owners = PrefixOwners(max_prefixes=4)
    first = prefixes_of(chat(["first"]))
    owners.served(first, "w0")
    for index in range(10):
        assert owners.longest(first) == {"w0": first[-1]}
        owners.served(prefixes_of(chat([f"other {index}"])), "w1")


def test_requests_of_different_scopes_have_no_start_in_common():
    ours = replace(chat([0, "what"], items=(A,)), cache_salt="ours")
    assert common(ours, ours).items == (A.identity,)
    for salt in ("", "theirs"):
        assert common(ours, replace(ours, cache_salt=salt)) is None


def handle_of(identity):
    worker = ScriptedWorker("e", Tensors())
    return worker._offer(identity, None)


def test_handles_are_given_out_until_shortly_before_they_expire():
    async def main():
        clock = LoopClock()
        index = EmbeddingIndex(clock)
        handle = handle_of(A.identity)
        index.offered(A.identity, handle, "e")
        assert index.handle(A.identity) is handle
        assert (index.producer(A.identity), index.holders(A.identity)) == ("e", {"e"})
        await asyncio.sleep(54.0)
        assert index.handle(A.identity) is handle
        await asyncio.sleep(4.0)
        assert index.handle(A.identity) is None
        assert index.holders(A.identity) == {"e"}
        assert index.producer(A.identity) == "e", "who uses it still may find that it is bad"

    run(main())


def test_what_is_known_in_one_scope_is_not_known_in_another():
    async def main():
        index = EmbeddingIndex(LoopClock())
        index.offered(A.identity, handle_of(A.identity), "e", "ours")
        index.held(A.identity, "p", "ours")
        assert index.holders(A.identity, "ours") == {"e", "p"}
        assert index.producer(A.identity, "ours") == "e"
        for salt in ("", "theirs"):
            assert (index.handle(A.identity, salt), index.holders(A.identity, salt)) == (None, frozenset())
            index.forget(A.identity, salt)
        assert index.handle(A.identity, "ours") is not None

    run(main())


def test_short_lives_have_short_margins():
    async def main():
        index = EmbeddingIndex(LoopClock())
        index.offered(A.identity, replace(handle_of(A.identity), expires_at_s=LoopClock().unix_s() + 3.0), "e")
        assert index.handle(A.identity) is not None
        await asyncio.sleep(2.8)
        assert index.handle(A.identity) is None

    run(main())


def test_an_offer_is_to_be_renewed_once_in_the_second_half_of_its_time():
    async def main():
        index = EmbeddingIndex(LoopClock())
        index.offered(A.identity, handle := handle_of(A.identity), "e")
        assert index.to_renew(A.identity) is None
        assert index.to_renew(B.identity) is None
        await asyncio.sleep(31.0)
        assert index.to_renew(A.identity) == (handle, "e")
        assert index.to_renew(A.identity) is None
        index.offered(A.identity, handle_of(A.identity), "e")
        await asyncio.sleep(58.0)
        assert index.to_renew(A.identity) is None, "too late"

    run(main())


def test_what_is_deleted_is_not_known_and_work_begun_before_does_not_bring_it_back():
    async def main():
        clock = LoopClock()
        index, owners = EmbeddingIndex(clock), PrefixOwners()
        prompt = replace(chat([0, "what"], items=(A,)), cache_salt="ours")
        other = replace(chat([0, "what"], items=(B,)), cache_salt="ours")
        for request in (prompt, other):
            owners.served(prefixes_of(request), "w")
        for salt in ("ours", "theirs"):
            index.offered(A.identity, handle_of(A.identity), "e", salt)
        index.held(B.identity, "p", "ours")
        begun_s = clock.now_s()
        await asyncio.sleep(1.0)
        assert index.forget_all(Deletion(identity=A.identity)) == 2
        assert owners.forget_all(Deletion(identity=A.identity), clock.now_s()) == 2
        index.offered(A.identity, handle_of(A.identity), "e", "ours", begun_s)
        index.held(A.identity, "p", "ours", begun_s)
        owners.served(prefixes_of(prompt), "w", begun_s)
        assert (index.handle(A.identity, "ours"), index.holders(A.identity, "ours")) == (None, frozenset())
        assert owners.longest(prefixes_of(prompt)) == {}
        assert (index.holders(B.identity, "ours"), len(owners.longest(prefixes_of(other)))) == ({"p"}, 1)
        assert index.forget_all(Deletion(cache_salt="ours")) == 1
        await asyncio.sleep(1.0)
        index.held(A.identity, "p", "ours", clock.now_s())
        owners.served(prefixes_of(prompt), "w", clock.now_s())
        assert index.holders(A.identity, "ours") == {"p"}
        assert list(owners.longest(prefixes_of(prompt))) == ["w"]

    run(main())


def test_what_a_worker_had_is_forgotten_with_it_and_a_picture_with_all_that_is_known_of_it():
    async def main():
        index = EmbeddingIndex(LoopClock(), max_pictures=2)
        for item in (A, B):
            index.offered(item.identity, handle_of(item.identity), "e")
            index.held(item.identity, "p")
        index.forget_worker("e")
        assert (index.handle(A.identity), index.holders(A.identity)) == (None, {"p"})
        index.forget(A.identity)
        assert index.holders(A.identity) == frozenset()
        for name in "cde":
            index.held(name, "p")
        assert len(index) == 2

    run(main())
