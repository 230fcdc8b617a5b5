"""A checked embedding that a worker cannot load: no client sees a token that was computed without it."""

import json
import mmap
import os
from pathlib import Path

import pytest

from chiasm.connectors.shm import arena
from tests.vllm.crews import MARKS
from tests.vllm.pictures import ask, encode, grid, new_picture, question, raw, reference, refused, tokens

pytestmark = MARKS
LONG = "Look closely, and say what you see. " * 20  # vLLM's cache on CPU is in blocks of 128 tokens


@pytest.fixture
def consumer(fleet):
    yield fleet.consumer
    assert fleet.consumer.is_alive


@pytest.fixture
def lost(fleet, consumer):
    """A picture and what its encoder says; the consumer has checked the embedding, and its workers cannot load it."""
    picture = new_picture()
    params = encode(fleet.shm, picture)
    assert ask(consumer, reference(picture, grid(params, picture)), params=params)[0] == 200
    for cache in ("encoder", "prefix"):
        status, body = consumer.request("POST", f"/reset_{cache}_cache")
        assert status == 200
        assert not body or json.loads(body)["success"]
    for path in own_arenas(consumer):
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            for slot in range(arena.read_head(memory)):
                arena.clear_slot(memory, slot)
    return picture, params


def own_arenas(server):
    """Shared memory that processes of a server may write to."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_theirs = os.getpgid(int(folder.name)) == server.process.pid
            lines = (folder / "maps").read_text().splitlines() if is_theirs else ()
        except OSError:
            continue  # ended meanwhile
        found |= {line.split()[-1] for line in lines if " rw-s " in line and f"{arena.FOLDER}/chiasm-" in line}
    assert found
    return [Path(name) for name in found]


@pytest.mark.parametrize("max_tokens", [1, 4])
def test_no_answer_has_a_token_of_it_and_the_next_request_gets_it_anew(lost, consumer, max_tokens):
    picture, params = lost
    part = reference(picture, grid(params, picture))
    assert refused(ask(consumer, part, params=params, max_tokens=max_tokens))
    assert ask(consumer, part, params=params) == ask(consumer, raw(picture))


@pytest.mark.parametrize("max_tokens", [1, 4])
def test_no_stream_does(lost, consumer, max_tokens):
    picture, params = lost
    messages = question(reference(picture, grid(params, picture)))
    events = list(consumer.stream(messages, max_tokens=max_tokens, ec_transfer_params=params))
    assert [event["error"]["code"] for event in events if "error" in event] == [500]
    assert not any(choice["delta"].get("content") for event in events for choice in event.get("choices", []))


@pytest.mark.parametrize("num_choices", [1, 2])
def test_no_block_of_it_stays_in_the_prefix_cache(lost, consumer, num_choices):
    """Blocks are cached when a step begins: here one with all of the picture, found by the second choice at once."""
    picture, params = lost
    part = reference(picture, grid(params, picture))
    fields = {"n": num_choices, "temperature": 1, "max_tokens": 1, "ec_transfer_params": params}
    assert refused(consumer.chat(question(part, text=LONG), **fields))
    found, expected = (
        consumer.chat(question(one, text=LONG), max_tokens=4, logprobs=True, ec_transfer_params=params)
        for one in (part, raw(picture))
    )
    assert (found[0], expected[0]) == (200, 200)
    assert tokens(found[1]) == tokens(expected[1])


def test_neighbours_that_need_nothing_of_it_go_on(lost, consumer):
    picture, params = lost
    events = consumer.stream(question(text="Tell me a story."), max_tokens=60, min_tokens=60, ignore_eos=True)
    next(events)
    assert refused(ask(consumer, reference(picture, grid(params, picture)), params=params))
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"]]
    assert reasons[-1] == "length"


def test_requests_of_one_step_share_the_loss(lost, consumer):
    """The second one finds the item in vLLM's encoder cache, put there for the first."""
    picture, params = lost
    body = {"model": "tiny_vlm", "temperature": 0, "max_tokens": 1, "n": 2, "ec_transfer_params": params}
    body["messages"] = question(reference(picture, grid(params, picture)))
    body["temperature"] = 1
    status, answer = consumer.request("POST", "/v1/chat/completions", body)
    assert refused((status, json.loads(answer)))
