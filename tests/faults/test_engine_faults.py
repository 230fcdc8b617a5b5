"""Faults inside a worker with a real engine: each request ends once, neighbours finish, everything is given back."""

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import torch

from chiasm.engines.embedded.core import EngineCore
from chiasm.errors import (
    ChecksumMismatchError,
    ChiasmError,
    ContextLengthError,
    DeadlineExceededError,
    EngineDeadError,
    EngineStepError,
    HandleExpiredError,
    LayoutMismatchError,
    MediaDecodeError,
    OverloadedError,
)
from chiasm.protocol.generation import (
    ChatPrompt,
    GenerateRequest,
    ItemPart,
    Message,
    RequestFinished,
    SamplingParams,
    TextPart,
    TokenEvent,
    TokensPrompt,
)
from chiasm.protocol.media import InlineSource, MediaItem
from chiasm.protocol.worker import EncodeRequest
from chiasm.settings import EngineSettings, MediaSettings
from chiasm.workers.local import LocalWorker
from tests.numeric.random_models import build
from tests.numeric.test_engine import media_item, picture

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return build("qwen3_vl", tmp_path_factory.mktemp("models") / "qwen3_vl")


@asynccontextmanager
async def running(directory: Path, **engine: object) -> AsyncIterator[LocalWorker]:
    settings = EngineSettings(**({"threads": 1, "max_running": 4} | engine))
    worker = LocalWorker.start(directory, "model", settings, MediaSettings(), lambda what, share: None)
    try:
        yield worker
    finally:
        await worker.aclose()


def items(seed: int, count: int = 1) -> tuple[MediaItem, ...]:
    rng = random.Random(seed)
    return tuple(media_item(picture(rng)) for _ in range(count))


def request(
    name: str, *pictures: MediaItem, max_tokens: int = 8, timeout_s: float = 110, n: int = 1
) -> GenerateRequest:
    parts = (*(ItemPart(i) for i in range(len(pictures))), TextPart(f"tell {name}"))
    return GenerateRequest(
        request_id=name,
        prompt=ChatPrompt((Message("user", parts),)),
        items=pictures,
        sampling=SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, n=n),
        timeout_s=timeout_s,
    )


async def outcome(worker: LocalWorker, asked: GenerateRequest) -> list[int] | ChiasmError:
    tokens: list[int] = []
    try:
        async with aclosing(worker.generate(asked)) as events:
            async for event in events:
                tokens += event.token_ids if isinstance(event, TokenEvent) else ()
    except ChiasmError as error:
        return error
    assert isinstance(event, RequestFinished)
    return tokens


async def until(condition: Callable[[], object], timeout_s: float = 60) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it never happened"
        await asyncio.sleep(0.001)


async def idle(worker: LocalWorker, timeout_s: float = 60) -> None:
    """Wait until nothing is held; fail when something stays."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        stats = worker.stats()
        held = (stats.num_running, stats.num_waiting, stats.num_held_embeddings, stats.num_open_requests)
        in_flight = worker._embeddings.num_in_flight, worker._decoder.num_decoding_pixels
        if (*held, *in_flight, stats.num_free_slots) == (0, 0, 0, 0, 0, 0, 4):
            worker._engine.core.pool.check_invariants()
            return
        assert time.monotonic() < deadline_s, f"still held: {stats} {in_flight}"
        await asyncio.sleep(0.01)


async def test_a_failing_step_ends_its_requests_and_the_engine_goes_on(directory, monkeypatch):
    async with running(directory) as worker:
        good = await outcome(worker, request("alone"))
        forward, calls = worker._engine.language.decoder.forward, 0

        def fail_once(*arguments):
            nonlocal calls
            calls += 1
            if calls == 2:
                raise RuntimeError("the model broke")
            return forward(*arguments)

        monkeypatch.setattr(worker._engine.language.decoder, "forward", fail_once)
        assert isinstance(await outcome(worker, request("victim")), EngineStepError)
        assert await outcome(worker, request("alone")) == good
        await idle(worker)
        assert worker.stats().is_healthy


async def test_want_of_memory_is_counted_apart_from_other_failures(directory, monkeypatch):
    async with running(directory) as worker:
        forward, encode = worker._engine.language.decoder.forward, worker._engine.family.encode
        errors = {"step": [RuntimeError("broke"), MemoryError()], "encoding": [MemoryError(), ValueError("broke")]}

        def failing(name, compute):
            return lambda *arguments: raised(errors[name].pop()) if errors[name] else compute(*arguments)

        monkeypatch.setattr(worker._engine.language.decoder, "forward", failing("step", forward))
        monkeypatch.setattr(worker._engine.family, "encode", failing("encoding", encode))
        for number in range(2):
            assert isinstance(await outcome(worker, request(f"text{number}")), EngineStepError)
            (item,) = items(number, 1)
            assert isinstance(await outcome(worker, request(f"picture{number}", item)), EngineStepError)
        await idle(worker)
        assert worker.stats().totals["out_of_memory"] == 2
        (told,) = await worker.memory(5.0)
        assert told.num_out_of_memory == 2
        assert told.used_bytes("requests") == 0


def raised(error):
    raise error


async def test_a_picture_that_breaks_the_encoder_fails_alone(directory, monkeypatch):
    async with running(directory) as worker:
        bad, *good = items(1, 3)
        encode = worker._engine.family.encode
        bad_size = (bad.width, bad.height)

        def picky(model, images):
            if any((image.plan.width, image.plan.height) == bad_size for image in images):
                raise RuntimeError("cannot encode this")
            return encode(model, images)

        monkeypatch.setattr(worker._engine.family, "encode", picky)
        asked = [request("bad", bad), *(request(f"good{i}", item) for i, item in enumerate(good))]
        results = await asyncio.gather(*(outcome(worker, one) for one in asked))
        assert isinstance(results[0], EngineStepError)
        assert all(isinstance(result, list) and len(result) == 8 for result in results[1:])
        await idle(worker)


async def test_a_broken_picture_is_named_by_each_of_the_requests_that_share_it(directory):
    async with running(directory) as worker:
        good, whole = items(11, 2)
        assert isinstance(whole.source, InlineSource)
        broken = msgspec.structs.replace(whole, source=InlineSource(whole.source.data[:-60]))
        asked = [request("first", broken), request("second", good, broken)]
        errors = await asyncio.gather(*(outcome(worker, one) for one in asked))
        assert [error.item for error in errors] == [0, 1]
        assert [type(error) for error in errors] == [MediaDecodeError] * 2
        assert worker.stats().num_cached_embeddings <= 1, "nothing is cached under the broken picture's identity"
        await idle(worker)


async def test_corrupt_and_misfit_embeddings_never_reach_the_model(directory, monkeypatch):
    async with running(directory) as worker:
        neighbour = asyncio.create_task(outcome(worker, request("neighbour", max_tokens=200)))
        store = worker._connector
        publish = store.publish
        monkeypatch.setattr(store, "publish", lambda metadata, data, _: publish(metadata, b"\x01" * len(bytes(data))))
        assert isinstance(await outcome(worker, request("corrupt", *items(2))), ChecksumMismatchError)
        monkeypatch.setattr(store, "publish", lambda metadata, data, _: publish(metadata, bytes(data)[:-4]))
        assert isinstance(await outcome(worker, request("short", *items(3))), LayoutMismatchError)
        assert len(await neighbour) == 200
        await idle(worker)


async def test_not_a_number_ends_only_its_own_sequence(directory, monkeypatch):
    async with running(directory) as worker:
        logits = worker._engine.language.decoder.logits

        def poisoned(hidden: torch.Tensor) -> torch.Tensor:
            values = logits(hidden).clone()
            if len(values) == 2:
                values[1] = float("nan")
            return values

        first = asyncio.create_task(outcome(worker, request("first", max_tokens=2000)))
        await until(lambda: worker.stats().num_running)
        monkeypatch.setattr(worker._engine.language.decoder, "logits", poisoned)
        assert isinstance(await outcome(worker, request("second")), EngineStepError)
        assert len(await first) == 2000
        await idle(worker)


@pytest.mark.parametrize("stage", ["decode", "encode", "prefill", "stream"])
async def test_a_caller_that_leaves_frees_everything(directory, monkeypatch, stage):
    async with running(directory, max_step_tokens=16) as worker:
        entered = asyncio.Event()
        loop = asyncio.get_running_loop()

        def slow(function, delay_s=0.3):
            def wrapped(*arguments, **more):
                loop.call_soon_threadsafe(entered.set)
                time.sleep(delay_s)
                return function(*arguments, **more)

            return wrapped

        if stage == "decode":
            monkeypatch.setattr(worker._engine.preparer, "prepare", slow(worker._engine.preparer.prepare))
        elif stage == "encode":
            monkeypatch.setattr(worker._engine.family, "encode", slow(worker._engine.family.encode))
        elif stage == "prefill":
            monkeypatch.setattr(
                worker._engine.language.decoder, "forward", slow(worker._engine.language.decoder.forward, 0.02)
            )
        else:
            entered.set()
        task = asyncio.create_task(outcome(worker, request("leaver", *items(4), max_tokens=3000)))
        async with asyncio.timeout(60):
            await entered.wait()
        if stage == "stream":
            await until(lambda: worker.stats().totals["decode_tokens"])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        monkeypatch.undo()
        await idle(worker)
        assert len(await outcome(worker, request("short"))) == 8


async def test_one_waiter_leaving_does_not_disturb_the_other_of_the_same_picture(directory, monkeypatch):
    async with running(directory) as worker:
        may_go_on, encode = threading.Event(), worker._engine.family.encode

        def held(model, images):
            assert may_go_on.wait(60)
            return encode(model, images)

        monkeypatch.setattr(worker._engine.family, "encode", held)
        (item,) = items(5)
        leaver = asyncio.create_task(outcome(worker, request("leaver", item)))
        stayer = asyncio.create_task(outcome(worker, request("stayer", item)))
        await until(lambda: [one.num_waiters for one in worker._embeddings._flights._flights.values()] == [2])
        leaver.cancel()
        await asyncio.gather(leaver, return_exceptions=True)
        may_go_on.set()
        assert len(await stayer) == 8
        assert worker.stats().totals["encoded_items"] == 1
        await idle(worker)


async def test_a_deadline_ends_the_request_and_frees_it(directory):
    async with running(directory) as worker:
        result = await outcome(worker, request("slow", *items(6), max_tokens=3000, timeout_s=0.3))
        assert isinstance(result, DeadlineExceededError)
        await idle(worker)


async def test_what_does_not_fit_is_refused_with_its_numbers(directory):
    async with running(directory, max_model_tokens=64) as worker:
        assert isinstance(await outcome(worker, request("long", max_tokens=64)), ContextLengthError)
        prompt = GenerateRequest(request_id="p", prompt=TokensPrompt(tuple(range(64))))
        error = await outcome(worker, prompt)
        assert isinstance(error, ContextLengthError)
        assert "64" in error.message
        await idle(worker)


async def test_a_full_queue_refuses_and_what_was_taken_finishes(directory):
    async with running(directory, max_waiting=3) as worker:
        results = await asyncio.gather(*(outcome(worker, request(str(i), max_tokens=300)) for i in range(40)))
        refused = [result for result in results if isinstance(result, OverloadedError)]
        finished = [result for result in results if isinstance(result, list)]
        assert refused
        assert finished
        assert len(refused) + len(finished) == 40
        assert all(len(result) == 300 for result in finished)
        await idle(worker)


async def test_a_dead_loop_ends_everything_and_says_so(directory, monkeypatch):
    async with running(directory) as worker:

        def broken(self):
            raise MemoryError("beyond repair")

        tasks = [asyncio.create_task(outcome(worker, request(str(i), max_tokens=2000))) for i in range(6)]
        await until(lambda: worker.stats().num_running == 4)
        monkeypatch.setattr(EngineCore, "step", broken)
        results = await asyncio.gather(*tasks)
        assert all(isinstance(result, EngineDeadError) for result in results)
        assert not worker.stats().is_healthy
        assert isinstance(await outcome(worker, request("late")), EngineDeadError)
        await idle(worker)


async def test_handles_are_used_and_expired_ones_are_a_coded_error(directory):
    async with running(directory, embedding_cache_bytes=2**20) as worker:
        (item,) = items(8)
        expected = await outcome(worker, request("raw", item))
        (handle,) = (await worker.encode(EncodeRequest(request_id="e", items=(item,)))).handles
        by_handle = MediaItem(
            identity=item.identity, format=item.format, width=item.width, height=item.height, source=handle
        )
        assert await outcome(worker, request("raw", by_handle)) == expected
        assert worker._connector._store.remove(handle.key)
        worker._engine.core.pool.clear()
        assert isinstance(await outcome(worker, request("raw", by_handle)), HandleExpiredError)
        await idle(worker)


async def test_choices_share_one_prefill_of_the_prompt(directory):
    async with running(directory) as worker:
        tokens = await outcome(worker, request("many words to fill several blocks of the prefix " * 4, n=3))
        assert len(tokens) == 24
        assert tokens.count(tokens[0]) >= 3
        assert worker.stats().totals["cached_prompt_tokens"] > 0
        await idle(worker)


async def test_two_hundred_mixed_requests_all_end_and_leave_nothing(directory):
    async with running(directory) as worker:
        rng = random.Random(9)
        pool = items(10, 12)
        threads_before = None

        async def one(number: int) -> str:
            chosen = [rng.choice(pool) for _ in range(rng.choice([0, 0, 1, 2, 4]))]
            asked = request(str(number), *chosen, max_tokens=rng.randint(1, 40), n=rng.choice([1, 1, 2]))
            task = asyncio.create_task(outcome(worker, asked))
            if rng.random() < 0.25:
                await asyncio.sleep(rng.random() * 0.5)
                task.cancel()
            done = (await asyncio.gather(task, return_exceptions=True))[0]
            if isinstance(done, asyncio.CancelledError):
                return "cancelled"
            assert isinstance(done, list), done
            assert len(done) == asked.sampling.max_tokens * asked.sampling.n
            return "finished"

        for _ in range(2):
            ends = await asyncio.gather(*(one(i) for i in range(100)))
            assert len(ends) == 100
            assert "finished" in ends
            await idle(worker)
            threads = threading.active_count()
            assert threads_before is None or threads <= threads_before
            threads_before = threads


async def test_a_sequence_that_is_not_finite_does_not_spoil_the_next_one_in_its_slot(directory, monkeypatch):
    async with running(directory, prefix_cache_bytes=0) as worker:
        good = await outcome(worker, request("later"))
        long = asyncio.create_task(outcome(worker, request("long", max_tokens=2000)))
        await until(lambda: worker.stats().totals["decode_tokens"] > 100)
        decoder = worker._engine.language.decoder
        embed = decoder.embed

        def overflowing(token_ids: torch.Tensor) -> torch.Tensor:
            x = embed(token_ids)
            if len(token_ids) > 4:  # the prompt of the victim; the other sequence only decodes
                x[-20:] = float("nan")
            return x

        monkeypatch.setattr(decoder, "embed", overflowing)
        assert isinstance(await outcome(worker, request("victim " * 20)), EngineStepError)
        monkeypatch.setattr(decoder, "embed", embed)
        assert await outcome(worker, request("later")) == good  # shares steps, and so the context length, with `long`
        assert not long.done()
        assert len(await long) == 2000
        await idle(worker)
