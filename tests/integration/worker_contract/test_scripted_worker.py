"""What the server of a worker takes and refuses, and how its calls end. The worker follows a script."""

import asyncio
import json
from contextlib import aclosing

import aiohttp
import pytest

from chiasm.errors import (
    ChecksumMismatchError,
    ChiasmError,
    DeadlineExceededError,
    EngineDeadError,
    EngineError,
    HandleExpiredError,
    InvalidRequestError,
    MediaDecodeError,
    OverloadedError,
    RequestTooLargeError,
    ShuttingDownError,
)
from chiasm.launch.server import address_of
from chiasm.protocol.generation import (
    ChatPrompt,
    GenerateRequest,
    Message,
    RequestFinished,
    SamplingParams,
    TextPart,
    TokenEvent,
)
from chiasm.protocol.wire import encode_request
from chiasm.protocol.worker import EncodeRequest
from chiasm.routing.remote import RemoteWorker, connection
from tests.fakes import FakeWorker, fail, hang, say
from tests.integration.gateway_server import PATIENCE_S, until
from tests.integration.worker_contract.servers import CARRIERS, listener, remote, served


def request(text="one two three", *, stream=True, timeout_s=60.0, n=1):
    return GenerateRequest(
        request_id="r",
        prompt=ChatPrompt((Message("user", (TextPart(text),)),)),
        sampling=SamplingParams(n=n),
        stream=stream,
        timeout_s=timeout_s,
    )


async def read(worker, asked):
    """The text, and the error it ended with or None."""
    text = ""
    try:
        async with aclosing(worker.generate(asked)) as events:
            async for event in events:
                text += event.text if isinstance(event, TokenEvent) else ""
    except ChiasmError as error:
        return text, error
    assert isinstance(event, RequestFinished)
    return text, None


async def started(worker):
    await asyncio.wait_for(worker.started.wait(), PATIENCE_S)


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_comes_through(carrier, stream, tmp_path):
    worker = FakeWorker()
    async with remote(worker, carrier, tmp_path) as (_, client):
        assert await read(client, request(stream=stream)) == ("one two three", None)
    assert worker.requests == [request(stream=stream, timeout_s=worker.requests[0].timeout_s)]


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        MediaDecodeError("broken", item=2, hint="Send it whole"),
        HandleExpiredError("gone"),
        ChecksumMismatchError("changed"),
        EngineDeadError("dead"),
        OverloadedError("full", retry_after_s=4),
        InvalidRequestError("wrong", param="/n"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_is_the_same_before_and_within_a_stream(error, stream, after, tmp_path):
    async with remote(FakeWorker(fail(error, after)), "unix", tmp_path) as (_, client):
        text, again = await read(client, request(stream=stream))
    assert text == ("one two" if stream and after else "")
    assert type(again) is type(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize("after", [0, 2])
async def test_a_fault_of_the_worker_is_told_without_its_words(after, tmp_path):
    async with remote(FakeWorker(fail(ValueError("a secret"), after)), "unix", tmp_path) as (_, client):
        _, error = await read(client, request())
        assert type(error) is ChiasmError
        assert "secret" not in error.message


async def test_a_stream_without_a_result_is_a_fault(tmp_path):
    async def script(asked):
        yield TokenEvent(0, "a", (1,))

    async with remote(FakeWorker(script), "unix", tmp_path) as (_, client):
        for stream in (True, False):
            _, error = await read(client, request(stream=stream))
            assert type(error) is EngineError


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("after", [0, 1])
async def test_leaving_cancels_at_the_worker(carrier, stream, after, tmp_path):
    worker = FakeWorker(hang(after))
    async with remote(worker, carrier, tmp_path) as (app, client):
        reader = asyncio.create_task(read(client, request(stream=stream)))
        await started(worker)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        await until(lambda: worker.num_cancelled == 1 and app.admission.num_open == 0)


async def test_leaving_cancels_an_encoding(tmp_path):
    worker, ended = FakeWorker(), asyncio.Event()

    async def encode(asked):
        worker.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    worker.encode = encode
    async with remote(worker, "unix", tmp_path) as (_, client):
        call = asyncio.create_task(client.encode(EncodeRequest(request_id="e", items=())))
        await started(worker)
        call.cancel()
        await asyncio.wait_for(ended.wait(), PATIENCE_S)


@pytest.mark.parametrize("after", [0, 1])
async def test_the_deadline_holds_at_both_ends(after, tmp_path):
    worker = FakeWorker(hang(after))
    async with remote(worker, "unix", tmp_path) as (_, client):
        _, error = await read(client, request(timeout_s=0.2))
        assert type(error) is DeadlineExceededError
        await until(lambda: worker.num_cancelled == 1)


async def test_the_server_ends_what_its_caller_would_wait_for(tmp_path):
    """A deadline is the worker's business, too: a caller may be stuck."""
    worker, socket = FakeWorker(hang()), listener("tcp", tmp_path)
    call = encode_request(request(timeout_s=0.1), "fake")
    async with served(worker, socket), aiohttp.ClientSession(address_of(socket)) as session:
        async with session.post(call.path, data=call.body) as response:
            assert response.status == 504
        await until(lambda: worker.num_cancelled == 1)


async def test_only_so_many_are_open(tmp_path):
    worker = FakeWorker(hang())
    async with remote(worker, "unix", tmp_path, max_open_requests=1) as (_, client):
        first = asyncio.create_task(read(client, request()))
        await started(worker)
        _, error = await read(client, request())
        assert type(error) is OverloadedError
        first.cancel()


async def test_a_body_has_a_limit(tmp_path):
    async with remote(FakeWorker(), "unix", tmp_path, max_body_bytes=2000) as (_, client):
        _, error = await read(client, request("word " * 1000))
        assert type(error) is RequestTooLargeError
        assert await read(client, request()) == ("one two three", None)


async def test_a_body_that_does_not_come_is_not_waited_for(tmp_path):
    socket = listener("tcp", tmp_path)
    async with served(FakeWorker(), socket, receive_timeout_s=0.2) as app:
        reader, writer = await asyncio.open_connection(*socket.getsockname())
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        assert b" 504 " in head.splitlines()[0]
        writer.close()
        await until(lambda: app.admission.num_open == 0)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/v1/chat/completions", b"{", 400, "invalid_request"),
        ("POST", "/v1/completions", b"[]", 400, "invalid_request"),
        ("POST", "/v1/chat/completions", b'{"model":"m","messages":[]}', 400, "invalid_request"),
        ("GET", "/v1/chat/completions", b"", 405, "method_not_allowed"),
        ("POST", "/stats", b"", 405, "method_not_allowed"),
        ("GET", "/v1/models", b"", 404, "not_found"),
    ],
)
async def test_what_is_not_understood_is_refused_with_a_code(method, path, body, status, code, tmp_path):
    socket = listener("tcp", tmp_path)
    async with served(FakeWorker(), socket), aiohttp.ClientSession(address_of(socket)) as session:
        response = await session.request(method, path, data=body)
        assert response.status == status
        assert json.loads(await response.read())["error"]["code"] == code


async def test_a_token_is_asked_for_everywhere_but_at_health(tmp_path):
    socket = listener("tcp", tmp_path)
    async with served(FakeWorker(), socket, token="s3cret"):
        for wrong in (None, "s3cre", "other"):
            with pytest.raises(EngineError, match="token"):
                await RemoteWorker.connect(address_of(socket), token=wrong)
        client = await RemoteWorker.connect(address_of(socket), token="s3cret")
        assert await read(client, request()) == ("one two three", None)
        await client.aclose()
        async with aiohttp.ClientSession(address_of(socket)) as session:
            async with session.get("/health") as response:
                assert (response.status, await response.json()) == (200, {"status": "ok"})
            async with session.get("/stats") as response:
                assert response.status == 401


async def test_a_dead_engine_shows_in_health_and_stats(tmp_path):
    worker, socket = FakeWorker(), listener("tcp", tmp_path)
    async with served(worker, socket), aiohttp.ClientSession(address_of(socket)) as session:
        client = await RemoteWorker.connect(address_of(socket))
        worker.is_healthy = False
        assert client.stats().is_healthy, "the snapshot is the one of before"
        assert not (await client.refresh()).is_healthy
        async with session.get("/health") as response:
            assert response.status == 503
        await client.aclose()


async def test_a_drain_lets_open_requests_finish_and_refuses_others(tmp_path):
    release = asyncio.Event()

    async def script(asked):
        yield TokenEvent(0, "a", (1,))
        await release.wait()
        async for event in say()(asked):
            yield event

    worker = FakeWorker(script)
    async with remote(worker, "unix", tmp_path) as (app, client):
        first = asyncio.create_task(read(client, request("b")))
        await started(worker)
        app.drain()
        _, error = await read(client, request())
        assert type(error) is ShuttingDownError
        release.set()
        assert await first == ("ab", None)


@pytest.mark.parametrize("after", [0, 1])
async def test_a_drain_that_takes_too_long_ends_what_is_open(after, tmp_path):
    worker, socket = FakeWorker(hang(after)), listener("unix", tmp_path)
    async with served(worker, socket, drain_timeout_s=0.0):
        client = await RemoteWorker.connect(address_of(socket))
        reader = asyncio.create_task(read(client, request()))
        await started(worker)
    _, error = await asyncio.wait_for(reader, PATIENCE_S)
    assert type(error) is ShuttingDownError
    await client.aclose()


async def test_letting_go_of_a_worker_ends_what_is_open(tmp_path):
    worker = FakeWorker(hang(1))
    async with remote(worker, "unix", tmp_path) as (_, client):
        reader = asyncio.create_task(read(client, request()))
        await started(worker)
        await client.aclose()
        _, error = await asyncio.wait_for(reader, PATIENCE_S)
        assert type(error) is EngineDeadError
        _, error = await read(client, request())
        assert type(error) is EngineDeadError
        assert not client.stats().is_healthy
        await until(lambda: worker.num_open == 0)


async def test_connections_are_used_again_but_not_for_ever(monkeypatch, tmp_path):
    async with remote(FakeWorker(), "unix", tmp_path) as (_, client):
        pool = client._connection
        (first,) = pool._idle
        for _ in range(3):
            assert await read(client, request()) == ("one two three", None)
            assert pool._idle == [first]
        monkeypatch.setattr(connection, "KEEP_ALIVE_S", 0.0)
        assert await read(client, request()) == ("one two three", None)
        assert first not in pool._idle
        await until(lambda: len(pool._channels) == 1)


async def test_a_connection_that_the_server_closed_when_idle_is_forgotten(tmp_path):
    async with remote(FakeWorker(), "tcp", tmp_path, keep_alive_s=2.0) as (_, client):
        pool = client._connection
        await until(lambda: not pool._channels)
        assert not pool._idle
        assert await read(client, request()) == ("one two three", None)
