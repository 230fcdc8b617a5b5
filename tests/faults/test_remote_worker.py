"""A worker that dies, hangs or talks nonsense ends its own requests, with a code, within their deadline."""

import asyncio
import os
import signal
import sys
from contextlib import aclosing, asynccontextmanager, suppress

import pytest

from chiasm.errors import ChiasmError, DeadlineExceededError, EngineDeadError, EngineError
from chiasm.protocol.generation import GenerateRequest, TextPrompt, TokenEvent
from chiasm.protocol.worker import EncodeRequest
from chiasm.routing.remote import RemoteWorker
from chiasm.routing.remote.connection import WorkerConnection
from tests.architecture.repository import ROOT
from tests.fakes import FakeWorker
from tests.integration.gateway_server import PATIENCE_S

LONG_TEXT = "word " * 5000


def request(timeout_s=60.0, stream=True, text=LONG_TEXT):
    return GenerateRequest(request_id="r", prompt=TextPrompt(text), stream=stream, timeout_s=timeout_s)


async def ending(worker, asked, after_first=None):
    """How many tokens came, and the error; calls `after_first` when the first is there."""
    num_tokens = 0
    try:
        async with aclosing(worker.generate(asked)) as events:
            async for event in events:
                num_tokens += isinstance(event, TokenEvent)
                if num_tokens == 1 and after_first is not None:
                    after_first()
    except ChiasmError as error:
        return num_tokens, type(error)
    return num_tokens, None


@asynccontextmanager
async def worker_process(folder):
    """A real process, and a `RemoteWorker` for it; gone at the end, however it was left."""
    path = str(folder / "w.sock")
    command = (sys.executable, "-m", "tests.faults.worker_process", path)
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        assert await asyncio.wait_for(process.stdout.readline(), PATIENCE_S) == b"ready\n"
        worker = await RemoteWorker.connect(f"unix:{path}", timeout_s=PATIENCE_S)
        try:
            yield process, worker
        finally:
            await worker.aclose()
    finally:
        with suppress(ProcessLookupError):  # it has ended, whether or not the loop has heard of it
            os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        process._transport.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_killed_process_ends_its_requests_at_once(stream, tmp_path):
    async with worker_process(tmp_path) as (process, worker):
        kill = process.kill
        if not stream:
            asyncio.get_running_loop().call_later(0.2, kill)
        async with asyncio.timeout(PATIENCE_S):
            num_tokens, error = await ending(worker, request(600, stream), kill)
        assert error is EngineDeadError
        assert num_tokens < 5000
        with pytest.raises(EngineDeadError):
            await worker.refresh()
        assert not worker.stats().is_healthy
        assert await ending(worker, request()) == (0, EngineDeadError)
        with pytest.raises(EngineDeadError):
            await worker.encode(EncodeRequest(request_id="e", items=()))


async def test_a_stopped_process_costs_the_deadline_and_no_more(tmp_path):
    async with worker_process(tmp_path) as (process, worker):
        num_tokens, error = await ending(worker, request(4.0), lambda: os.kill(process.pid, signal.SIGSTOP))
        assert error is DeadlineExceededError
        assert num_tokens >= 1
        with pytest.raises(DeadlineExceededError):
            await worker.refresh(0.2)
        assert not worker.stats().is_healthy
        os.kill(process.pid, signal.SIGCONT)
        assert (await worker.refresh(PATIENCE_S)).is_healthy


@pytest.mark.parametrize("address", ["unix:/nowhere/at/all", "http://127.0.0.1:1"])
async def test_nobody_there(address):
    with pytest.raises(EngineDeadError) as caught:
        await RemoteWorker.connect(address)
    assert "nowhere" not in str(caught.value)
    assert "127.0.0.1" not in str(caught.value)


CHUNK = b'data: {"choices":[{"index":0,"text":"a","token_ids":[1]}]}\n\n'


def response(body, *, status=b"200 OK", length=None):
    head = b"HTTP/1.1 " + status + b"\r\ncontent-length: " + str(length or len(body)).encode()
    return head + b"\r\n\r\n" + body


@asynccontextmanager
async def talking(reply, *, stays):
    """A server that answers any request with `reply`, then hangs or closes; and a `RemoteWorker` for it."""
    release = asyncio.Event()

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        if stays:
            await release.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    fake = FakeWorker()
    connection = WorkerConnection(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None)
    worker = RemoteWorker(connection, fake.info, fake.stats())
    try:
        yield worker
    finally:
        release.set()
        await worker.aclose()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    ("reply", "stays", "expected"),
    [
        (b"", False, (0, EngineDeadError)),
        (b"HTTP/1.1 200 OK\r\ncontent-le", False, (0, EngineDeadError)),
        (b"SSH-2.0-nothing\r\n\r\n", False, (0, EngineDeadError)),
        (response(CHUNK[:20], length=500), False, (0, EngineDeadError)),
        (response(CHUNK, length=500), False, (1, EngineDeadError)),
        (response(CHUNK), False, (1, EngineDeadError)),
        (response(b"data: [DONE]\n\n"), False, (0, EngineDeadError)),
        (response(CHUNK + b"data: {\n\n"), False, (1, EngineError)),
        (response(b"<html>", status=b"502 Bad Gateway"), False, (0, EngineError)),
        (b"", True, (0, DeadlineExceededError)),
        (response(CHUNK, length=500), True, (1, DeadlineExceededError)),
    ],
)
async def test_an_answer_that_is_cut_off_or_nonsense(reply, stays, expected):
    async with talking(reply, stays=stays) as worker, asyncio.timeout(PATIENCE_S):
        assert await ending(worker, request(0.5 if stays else 60.0)) == expected


@pytest.mark.parametrize("reply", [response(b"[1]"), response(b"<html>"), response(b"")])
async def test_numbers_that_are_none(reply):
    async with talking(reply, stays=False) as worker:
        with pytest.raises(EngineError):
            await worker.refresh()
        assert not worker.stats().is_healthy
