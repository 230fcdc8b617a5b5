"""A trace of what a real gateway served."""

import asyncio
import json

import pytest

from chiasm.advisor.receipts import Collected, collect
from chiasm.bench.target import parse_target
from chiasm.errors import EngineError, InvalidSettingError
from chiasm.simulator.traces.lines import TracePicture
from chiasm.simulator.traces.reading import read_requests
from tests.integration.gateway_server import connected, post_bytes, read_response, running

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def ask(*parts):
    content = [*parts, {"type": "text", "text": "a b"}]
    return post_bytes(json.dumps({"messages": [{"role": "user", "content": content}]}).encode())


async def test_what_was_served_is_in_it_and_what_was_said_is_not(tmp_path):
    async with running() as server:
        async with connected(server) as (reader, writer):
            for body in (ask(), ask(PICTURE), post_bytes(b"{")):
                writer.write(body)
                await read_response(reader)
        target = parse_target(f"http://127.0.0.1:{server.port}")
        found = Collected()
        await collect(target, found, is_admin=False, for_s=0.0)
    (tmp_path / "trace.jsonl").write_bytes(found.lines())
    requests = read_requests(tmp_path / "trace.jsonl", TracePicture())
    assert [len(one.pictures) for one in requests] == [0, 1]
    assert b"a b" not in (tmp_path / "trace.jsonl").read_bytes()


async def test_what_came_before_the_server_ended_is_kept():
    found, seen = Collected(), asyncio.Event()
    async with running() as server:
        async with connected(server) as (reader, writer):
            writer.write(ask())
            await read_response(reader)
        target = parse_target(f"http://127.0.0.1:{server.port}")
        going_on = asyncio.create_task(
            collect(target, found, is_admin=False, for_s=60.0, on_seen=lambda *_: seen.set())
        )
        await asyncio.wait_for(seen.wait(), 30.0)
    with pytest.raises(EngineError):
        await asyncio.wait_for(going_on, 60.0)
    assert len(found) == 1


async def test_a_key_that_opens_nothing_is_told_so():
    async with running(api_keys=("key-that-is-long-enough",)) as server:
        target = parse_target(f"http://127.0.0.1:{server.port}", "another-key-that-is-wrong")
        with pytest.raises(InvalidSettingError, match="does not open receipts"):
            await collect(target, Collected(), is_admin=False, for_s=0.0)


async def test_a_server_that_is_none_is_no_endless_answer():
    async def endless(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 2**20)
                await writer.drain()
        except ConnectionError:
            pass

    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(EngineError, match="not with receipts"):
        await collect(parse_target(f"http://127.0.0.1:{port}"), Collected(), is_admin=False, for_s=0.0)
    server.close()
