"""Graceful stop: who is inside finishes, who comes is sent elsewhere, who takes too long is told."""

import asyncio
import json
import signal
import subprocess
import sys

import pytest

from chiasm.errors import InvalidSettingError
from chiasm.launch.server import address_of, bind
from tests.fakes import by_prompt, say
from tests.integration.gateway_server import PATIENCE_S, connected, post_bytes, read_response, running, until


def ask(text, **fields):
    return post_bytes(json.dumps({"messages": [{"role": "user", "content": text}], **fields}).encode())


async def test_a_running_request_finishes_and_a_new_one_is_refused():
    may_end = asyncio.Event()

    async def gated(request):
        async for event in say()(request):
            yield event
            await may_end.wait()

    async with running(gated) as server, connected(server) as (reader, writer), connected(server) as (other, late):
        late.write(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await read_response(other))[0] == 200
        writer.write(ask("a b c d e", stream=True))
        await asyncio.wait_for(server.worker.started.wait(), PATIENCE_S)
        server.stop.set()
        await until(lambda: server.gateway.admission.is_closed)
        late.write(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await read_response(other))[0] == 503
        late.write(ask("x"))
        status, headers, body = await read_response(other)
        assert (status, json.loads(body)["error"]["code"], headers["retry-after"]) == (503, "shutting_down", "1")
        async with connected(server) as (fresh, newcomer):
            newcomer.write(ask("x"))
            assert (await read_response(fresh))[0] == 503
        may_end.set()
        status, _, body = await read_response(reader)
        assert status == 200
        assert body.endswith(b"data: [DONE]\n\n")
        assert b' e"' in body
        await asyncio.wait_for(server.task, PATIENCE_S)
        with pytest.raises(OSError, match=r"refused|Connect"):
            await server.connect()


async def test_what_does_not_finish_in_time_ends_with_a_code():
    async with running(by_prompt(), drain_timeout_s=0.2) as server:
        async with connected(server) as (reader, writer), connected(server) as (streaming, started):
            writer.write(ask("hang 0"))
            started.write(ask("hang 1 x", stream=True))
            await asyncio.wait_for(streaming.readuntil(b'"hang"'), PATIENCE_S)
            server.stop.set()
            status, _, body = await read_response(reader)
            assert (status, json.loads(body)["error"]["code"]) == (503, "shutting_down")
            rest = await asyncio.wait_for(streaming.readuntil(b"[DONE]"), PATIENCE_S)
            assert b'"shutting_down"' in rest
            await asyncio.wait_for(server.task, PATIENCE_S)
        assert server.outcomes() == {"shutting_down": 2}
        assert server.worker.num_open == 0


async def test_an_idle_server_stops_at_once():
    async with running(drain_timeout_s=600, keep_alive_s=600) as server, connected(server):
        server.stop.set()
        await asyncio.wait_for(server.task, PATIENCE_S)


async def test_idle_connections_are_closed():
    async with running(keep_alive_s=1.0) as server, connected(server) as (reader, writer):
        for _ in range(2):
            writer.write(ask("x"))
            assert (await read_response(reader))[0] == 200
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""


def test_a_taken_port_is_named():
    with bind("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(InvalidSettingError, match=f"port {port}") as caught:
            bind("127.0.0.1", port)
    assert "--port" in caught.value.hint


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.1"])
def test_an_address_that_is_not_ours_is_refused(host):
    with pytest.raises(InvalidSettingError, match="Cannot listen"):
        bind(host, 0)


def test_addresses_are_ones_that_can_be_opened():
    for host, shown in (("127.0.0.1", "http://127.0.0.1:"), ("0.0.0.0", "http://localhost:"), ("::1", "http://[::1]:")):
        try:
            listener = bind(host, 0)
        except InvalidSettingError:
            assert ":" in host, "only IPv6 may be missing on this machine"
            continue
        with listener:
            assert address_of(listener).startswith(shown)


PROGRAM = """
import asyncio, sys
from chiasm.launch import local
from chiasm.settings import resolve
from tests.fakes import FakeWorker, by_prompt

def script(request):
    print("taken", flush=True)
    return by_prompt()(request)

local.start_worker = lambda settings, progress: (FakeWorker(script), None)
settings = resolve(environment={}, overrides=["gateway.port=0", "gateway.drain_timeout_s=60"]).settings
local.serve(settings, lambda what, share: None, lambda server: print(server.address, flush=True))
print("stopped", flush=True)
"""


async def until_draining(port):
    async with asyncio.timeout(PATIENCE_S):
        status = 200
        while status == 200:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
            status, _, _ = await read_response(reader)
            writer.close()
        assert status == 503


@pytest.mark.parametrize(("signals", "finishes"), [([signal.SIGTERM], True), ([signal.SIGINT, signal.SIGINT], False)])
async def test_signals(signals, finishes):
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, stdout=subprocess.PIPE)
    try:
        port = int((await asyncio.wait_for(process.stdout.readline(), 2 * PATIENCE_S)).rsplit(b":", 1)[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ask("slow " + "b " * 100 if finishes else "hang 0"))
        assert await asyncio.wait_for(process.stdout.readline(), PATIENCE_S) == b"taken\n"
        first, *second = signals
        process.send_signal(first)
        for number in second:
            await until_draining(port)  # a signal that comes before the first was seen would be lost
            process.send_signal(number)
        if finishes:
            assert (await read_response(reader))[0] == 200
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
        assert await process.stdout.read() == b"stopped\n"
        writer.close()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
