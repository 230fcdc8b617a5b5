"""Reading ahead of the client: batches, order, failures, bounds, and letting go."""

import asyncio

import pytest

from chiasm.errors import EngineError, EngineStepError
from chiasm.gateway.exchange import generation
from chiasm.gateway.exchange.generation import Generation
from chiasm.protocol.generation import (
    ChoiceFinished,
    GenerateRequest,
    RequestFinished,
    SamplingParams,
    TextPrompt,
    TokenEvent,
)
from tests.fakes import FakeWorker, fail, finished, hang, say


def request(text="a b c", **sampling):
    return GenerateRequest(request_id="r", prompt=TextPrompt(text), sampling=SamplingParams(**sampling))


async def batches(worker, *requests):
    got = []
    async with Generation(worker, requests, is_stream=True) as running:
        while batch := await running.next_batch():
            got.append(batch)
    return got


async def test_a_reader_that_keeps_up_gets_one_event_a_batch():
    got = await batches(FakeWorker(say(0.005)), request())
    assert [event.text for batch in got for event in batch if isinstance(event, TokenEvent)] == ["a", " b", " c"]
    assert len(got) >= 3


async def test_tokens_in_quick_succession_share_a_batch_but_the_first_and_the_end_do_not_wait(monkeypatch):
    monkeypatch.setattr(generation, "MIN_INTERVAL_S", 3600.0)
    proceed = asyncio.Event()

    async def script(made):
        yield TokenEvent(0, "a", (1,))
        await proceed.wait()
        for text in "bcd":
            yield TokenEvent(0, text, (1,))
            await asyncio.sleep(0)
        yield ChoiceFinished(0, "stop")
        yield finished(made, 4)

    async with Generation(FakeWorker(script), [request()], is_stream=True) as running:
        assert await running.next_batch() == [TokenEvent(0, "a", (1,))]
        proceed.set()
        second = await running.next_batch()
        assert second[0] == TokenEvent(0, "bcd", (1, 1, 1))
        assert [type(event) for event in second[1:]] == [ChoiceFinished, RequestFinished]
        assert await running.next_batch() == []


async def test_what_gathers_is_handed_out_when_its_time_has_come(monkeypatch):
    monkeypatch.setattr(generation, "MIN_INTERVAL_S", 0.05)

    async def script(made):
        for text in "abc":
            yield TokenEvent(0, text, (1,))
        await asyncio.Event().wait()

    async with Generation(FakeWorker(script), [request()], is_stream=True) as running:
        texts = ""
        while texts != "abc":
            texts += "".join(event.text for event in await running.next_batch())


async def test_a_failure_does_not_wait_for_more_tokens(monkeypatch):
    monkeypatch.setattr(generation, "MIN_INTERVAL_S", 3600.0)
    worker = FakeWorker(fail(EngineStepError("broken"), after=3))
    with pytest.raises(EngineStepError, match="broken"):
        await batches(worker, request("a b c d"))


async def test_a_reader_that_is_behind_gets_all_there_is_in_one_batch():
    async with Generation(FakeWorker(say()), [request()], is_stream=True) as running:
        await asyncio.sleep(0.02)
        batch = await running.next_batch()
        assert await running.next_batch() == []
    assert batch[0] == TokenEvent(0, "a b c", (1, 2, 2))
    assert [type(event) for event in batch[1:]] == [ChoiceFinished, RequestFinished]


async def test_choices_of_several_generations_are_numbered_through():
    got = [e for batch in await batches(FakeWorker(), request("a", n=2), request("b", n=2)) for e in batch]
    texts = {event.choice: event.text for event in got if isinstance(event, TokenEvent)}
    assert texts == {0: "a", 1: "a", 2: "b", 3: "b"}
    assert {event.choice for event in got if isinstance(event, ChoiceFinished)} == {0, 1, 2, 3}
    assert sum(isinstance(event, RequestFinished) for event in got) == 2


async def test_a_failure_comes_after_the_events_before_it():
    worker = FakeWorker(fail(EngineStepError("broken"), after=2))
    texts = []

    async def read():
        async with Generation(worker, [request()], is_stream=True) as running:
            while batch := await running.next_batch():
                texts.extend(event.text for event in batch)

    with pytest.raises(EngineStepError, match="broken"):
        await read()
    assert "".join(texts) == "a b"
    assert worker.num_open == 0


async def test_the_failure_of_one_generation_ends_the_others():
    def script(made):
        return hang()(made) if made.prompt.text == "hang" else fail(EngineStepError("broken"))(made)

    worker = FakeWorker(script)
    with pytest.raises(EngineStepError):
        await batches(worker, request("hang"), request("x"))
    assert (worker.num_open, worker.num_cancelled, worker.num_failed) == (0, 1, 1)


async def test_a_stream_that_just_stops_is_an_error():
    async def script(made):
        yield TokenEvent(0, "a", (1,))

    with pytest.raises(EngineError, match="without a result"):
        await batches(FakeWorker(script), request())


async def test_leaving_cancels_and_waits_for_the_worker():
    worker = FakeWorker(hang(1))
    async with Generation(worker, [request(), request()], is_stream=True) as running:
        await running.next_batch()
        assert worker.num_open == 2
    assert (worker.num_open, worker.num_cancelled) == (0, 2)


async def test_a_worker_that_does_not_let_go_is_not_waited_for_without_end(monkeypatch):
    release = asyncio.Event()

    async def script(made):
        try:
            await asyncio.Event().wait()
            yield
        except asyncio.CancelledError:
            await release.wait()

    monkeypatch.setattr(generation, "_CLOSE_TIMEOUT_S", 0.05)
    worker = FakeWorker(script)
    async with Generation(worker, [request()], is_stream=True) as running:
        await worker.started.wait()
    release.set()
    await asyncio.wait(running._readers, timeout=5)
    assert all(reader.done() for reader in running._readers)


async def test_reading_ahead_is_bounded(monkeypatch):
    monkeypatch.setattr(generation, "_MAX_READ_AHEAD", 10)
    made = 0

    async def script(request_):
        nonlocal made
        for _ in range(1000):
            made += 1
            yield TokenEvent(0, "x", (1,))
        yield finished(request_, 1000)

    async with Generation(FakeWorker(script), [request()], is_stream=True) as running:
        await asyncio.sleep(0.02)
        assert made == 10
        texts = []
        while batch := await running.next_batch():
            texts += [event.text for event in batch if isinstance(event, TokenEvent)]
    assert "".join(texts) == "x" * 1000
