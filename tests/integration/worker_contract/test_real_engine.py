"""One suite for every way to a worker: in process, over a Unix socket, over TCP. The engine is real, the model tiny."""

import asyncio
import random
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from chiasm.errors import (
    ChiasmError,
    ContextLengthError,
    DeadlineExceededError,
    HandleExpiredError,
    MediaDecodeError,
    RequestError,
)
from chiasm.protocol.generation import (
    ChatPrompt,
    ChoiceFinished,
    GenerateRequest,
    ItemPart,
    Message,
    RequestFinished,
    SamplingParams,
    TextPart,
    TextPrompt,
    TokenEvent,
    TokensPrompt,
)
from chiasm.protocol.media import EmbeddingHandle, InlineSource
from chiasm.protocol.worker import EncodeRequest, Worker
from chiasm.settings import EngineSettings, MediaSettings
from chiasm.workers.local import LocalWorker
from tests.integration.gateway_server import until
from tests.integration.worker_contract.servers import CARRIERS, remote
from tests.numeric.random_models import build
from tests.numeric.test_engine import media_item, picture

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Ways:
    """The same worker, by every way."""

    def __init__(self, local: LocalWorker) -> None:
        self.local = local
        self.by_name: dict[str, Worker] = {"local": local}

    async def until_idle(self) -> None:
        def is_idle() -> bool:
            stats = self.local.stats()
            return not (
                stats.num_running or stats.num_waiting or stats.num_held_embeddings or stats.num_open_requests
            ) and (stats.num_free_slots == 4)

        await until(is_idle)


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return build("qwen3_vl", tmp_path_factory.mktemp("models") / "qwen3_vl")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ways(directory, tmp_path_factory):
    settings = EngineSettings(threads=1, max_running=4)
    local = LocalWorker.start(directory, "tiny", settings, MediaSettings(), lambda what, share: None)
    found = Ways(local)
    async with AsyncExitStack() as stack:
        for carrier in CARRIERS:
            folder = tmp_path_factory.mktemp(carrier)
            _, found.by_name[carrier] = await stack.enter_async_context(remote(local, carrier, folder))
        yield found
    await local.aclose()


@pytest.fixture(params=("local", *CARRIERS))
def worker(request, ways) -> Worker:
    return ways.by_name[request.param]


@pytest.fixture(params=CARRIERS)
def far(request, ways) -> Worker:
    return ways.by_name[request.param]


def sampling(**fields) -> SamplingParams:
    return SamplingParams(**({"temperature": 0, "max_tokens": 12, "ignore_eos": True} | fields))


def chat(*parts, items=(), name="r", stream=True, timeout_s=60.0, **fields) -> GenerateRequest:
    """One user message; numbers are items."""
    made = tuple(TextPart(part) if isinstance(part, str) else ItemPart(part) for part in parts)
    return GenerateRequest(
        request_id=name,
        prompt=ChatPrompt((Message("user", made),)),
        items=items,
        sampling=sampling(**fields),
        stream=stream,
        timeout_s=timeout_s,
    )


def pictures(seed, count=1):
    rng = random.Random(seed)
    return tuple(media_item(picture(rng)) for _ in range(count))


def cut_short(item):
    return msgspec.structs.replace(item, source=InlineSource(item.source.data[:-60]))


async def outcome(worker: Worker, request: GenerateRequest):
    """Everything a caller sees but times and cache hits, joined per choice; or the error."""
    texts, ids, logprobs, ends, event = {}, {}, {}, {}, None
    try:
        async with aclosing(worker.generate(request)) as events:
            async for event in events:
                if isinstance(event, TokenEvent):
                    texts[event.choice] = texts.get(event.choice, "") + event.text
                    ids[event.choice] = ids.get(event.choice, ()) + event.token_ids
                    logprobs[event.choice] = logprobs.get(event.choice, ()) + (event.logprobs or ())
                elif isinstance(event, ChoiceFinished):
                    ends[event.choice] = (event.reason, event.stop)
    except ChiasmError as error:
        return type(error), error.message, error.hint, error.param, error.item
    assert isinstance(event, RequestFinished)
    counts = event.usage.num_prompt_tokens, event.usage.num_output_tokens, event.usage.num_visual_tokens
    return texts, ids, logprobs, ends, counts


REQUESTS = {
    "chat": chat("tell me"),
    "whole": chat("tell me", stream=False),
    "text": GenerateRequest(request_id="t", prompt=TextPrompt("one two"), sampling=sampling()),
    "tokens": GenerateRequest(request_id="i", prompt=TokensPrompt((5, 6, 7)), sampling=sampling()),
    "tokens, whole": GenerateRequest(
        request_id="i", prompt=TokensPrompt((5, 6, 7)), sampling=sampling(num_top_logprobs=2), stream=False
    ),
    "roles": GenerateRequest(
        request_id="m",
        prompt=ChatPrompt(
            (
                Message("system", (TextPart("be brief"),)),
                Message("user", (TextPart("a"), TextPart("b"))),
                Message("assistant", (TextPart("the answer"),)),
            ),
            continue_final_message=True,
        ),
        sampling=sampling(),
    ),
    "logprobs": chat("tell me", num_top_logprobs=3),
    "two choices": chat("tell me", n=2, temperature=1.0, seed=3, num_top_logprobs=0),
    "stop string": chat("tell me", max_tokens=40, stop=("a", "e", "7"), ignore_eos=False),
    "sampling": chat(
        "tell me", temperature=0.7, top_p=0.9, top_k=9, min_p=0.01, seed=11, presence_penalty=0.5, logit_bias={7: 2.0}
    ),
    "schema": chat("tell me", json_schema='{"type":"object","properties":{"a":{"type":"integer"}}}', max_tokens=20),
    "picture": chat(0, "what?", items=pictures(1)),
    "pictures": chat("a", 1, "b", 0, items=pictures(2, 2), stream=False),
    "too long": chat("word " * 9000),
    "bad schema": chat("tell me", json_schema='{"type":"nonsense"}'),
    "broken picture": chat(0, items=(cut_short(pictures(3)[0]),)),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_the_way_does_not_change_the_outcome(name, ways):
    here = await outcome(ways.local, REQUESTS[name])
    for carrier in CARRIERS:
        assert await outcome(ways.by_name[carrier], REQUESTS[name]) == here
    await ways.until_idle()


async def test_the_requests_above_do_what_their_names_say(ways):
    """Or the comparison would compare nothing."""
    seen = {name: await outcome(ways.local, request) for name, request in REQUESTS.items()}
    failed = {name: result[0] for name, result in seen.items() if isinstance(result[0], type)}
    assert failed.pop("too long") is ContextLengthError
    assert failed.pop("broken picture") is MediaDecodeError
    assert issubclass(failed.pop("bad schema"), RequestError)
    assert failed == {}
    assert len(seen["logprobs"][2][0][0].top) == 3
    assert sorted(seen["two choices"][0]) == [0, 1]
    assert seen["stop string"][3][0][0] == "stop"
    assert seen["picture"][4][2] > 0


async def test_an_encoded_picture_is_used_by_its_handle(worker, ways):
    items = pictures(5, 3)
    raw = await outcome(ways.local, chat(0, "and", 1, "and", 2, items=items))
    answer = await worker.encode(EncodeRequest(request_id="e", items=(*items, items[0])))
    assert [handle.metadata.identity for handle in answer.handles] == [i.identity for i in (*items, items[0])]
    assert answer.handles[0] == answer.handles[3]
    encoded = tuple(
        msgspec.structs.replace(item, source=handle) for item, handle in zip(items, answer.handles, strict=False)
    )
    before = ways.local.stats().totals["encoded_items"]
    assert await outcome(worker, chat(0, "and", 1, "and", 2, items=encoded)) == raw
    assert ways.local.stats().totals["encoded_items"] == before
    await ways.until_idle()


async def test_a_handle_of_nothing_is_refused(worker, ways):
    item = pictures(6)[0]
    handle = (await worker.encode(EncodeRequest(request_id="e", items=(item,)))).handles[0]
    gone = msgspec.structs.replace(
        handle,
        key="of-nothing",
        metadata=msgspec.structs.replace(handle.metadata, identity="0" * 64),
    )
    stale = msgspec.structs.replace(item, identity="0" * 64, source=gone)
    assert isinstance(stale.source, EmbeddingHandle)
    kind, *_ = await outcome(worker, chat(0, items=(stale,)))
    assert kind is HandleExpiredError
    await ways.until_idle()


async def test_an_undecodable_picture_names_itself_when_it_is_encoded(worker):
    good = pictures(7)[0]
    bad = cut_short(pictures(8)[0])
    with pytest.raises(MediaDecodeError) as caught:
        await worker.encode(EncodeRequest(request_id="e", items=(good, bad)))
    assert caught.value.item == 1


async def test_closing_the_iterator_frees_everything(worker, ways):
    events = worker.generate(chat("tell me", max_tokens=2000, n=2))
    async with aclosing(events):
        async for event in events:
            if isinstance(event, TokenEvent):
                break
    await ways.until_idle()


async def test_cancelling_the_reader_frees_everything(worker, ways):
    started = asyncio.Event()

    async def read():
        async for _ in worker.generate(chat(0, "tell me", max_tokens=2000, items=pictures(9))):
            started.set()

    reader = asyncio.create_task(read())
    await asyncio.wait_for(started.wait(), 30)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await ways.until_idle()


@pytest.mark.parametrize("stream", [True, False])
async def test_the_deadline_ends_a_request(worker, ways, stream):
    kind, *_ = await outcome(worker, chat("tell me", max_tokens=3000, n=4, timeout_s=0.3, stream=stream))
    assert kind is DeadlineExceededError
    await ways.until_idle()


async def test_many_at_once_get_their_own_answers(worker, ways):
    asked = [chat(f"say {number}", name=f"r{number}", max_tokens=8) for number in range(12)]
    alone = [await outcome(ways.local, request) for request in asked]
    assert await asyncio.gather(*(outcome(worker, request) for request in asked)) == alone
    await ways.until_idle()


async def test_a_remote_worker_says_who_it_is_and_what_it_holds(far, ways):
    assert far.info == ways.local.info
    await ways.until_idle()
    assert (await far.refresh()) == far.stats() == ways.local.stats()
