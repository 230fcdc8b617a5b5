"""Clients that leave: at every stage the work stops, everything is freed, and the next request is not held up."""

import asyncio
import json

import pytest

from tests.fakes import by_prompt, hang, token
from tests.integration.gateway_server import PATIENCE_S, connected, post_bytes, read_response, reset, running, until


def ask(text, *urls, **fields):
    content = [{"type": "image_url", "image_url": {"url": url}} for url in urls] + [{"type": "text", "text": text}]
    return post_bytes(json.dumps({"messages": [{"role": "user", "content": content}], **fields}).encode())


async def short_request(server):
    async with connected(server) as (reader, writer):
        writer.write(ask("short"))
        status, _, body = await read_response(reader)
        assert status == 200
        assert json.loads(body)["choices"][0]["message"]["content"] == "short"


LEAVE = {"fin": lambda writer: writer.close(), "rst": reset}


@pytest.mark.parametrize("how", LEAVE)
async def test_in_the_middle_of_the_body(how):
    async with running() as server, connected(server) as (_, writer):
        writer.write(ask("x" * 500)[:300])
        await writer.drain()
        await until(lambda: server.gateway.admission.num_open == 1)
        LEAVE[how](writer)
        await server.until_idle()
        assert server.outcomes() == {"cancelled": 1}
        await short_request(server)


@pytest.mark.parametrize("how", LEAVE)
async def test_while_media_are_fetched(how):
    async with running() as server, connected(server) as (_, writer):
        writer.write(ask("x", "hang:1"))
        await asyncio.wait_for(server.ingest.started.wait(), PATIENCE_S)
        LEAVE[how](writer)
        await server.until_idle()
        assert server.ingest.num_cancelled == 1
        assert server.worker.requests == []
        assert server.outcomes() == {"cancelled": 1}
        await short_request(server)


async def test_while_waiting_in_the_queue():
    async with running(by_prompt(), max_running_requests=1) as server:
        async with connected(server) as (_, first):
            first.write(ask("hang 0"))
            await asyncio.wait_for(server.worker.started.wait(), PATIENCE_S)
            async with connected(server) as (_, second):
                second.write(ask("second"))
                await until(lambda: server.gateway.admission.num_queued == 1)
            await until(lambda: server.gateway.admission.num_queued == 0)
            assert len(server.worker.requests) == 1
        await server.until_idle()
        assert server.outcomes() == {"cancelled": 2}
        await short_request(server)


@pytest.mark.parametrize("how", LEAVE)
@pytest.mark.parametrize("stream", [False, True])
async def test_before_the_first_token(how, stream):
    async with running(by_prompt()) as server, connected(server) as (_, writer):
        writer.write(ask("hang 0", stream=stream))
        await asyncio.wait_for(server.worker.started.wait(), PATIENCE_S)
        LEAVE[how](writer)
        await server.until_idle()
        assert (server.worker.num_cancelled, server.outcomes()) == (1, {"cancelled": 1})
        await short_request(server)


@pytest.mark.parametrize("how", LEAVE)
async def test_in_the_middle_of_a_stream(how):
    async with running(by_prompt()) as server, connected(server) as (reader, writer):
        writer.write(ask("hang 3 x", stream=True))
        await asyncio.wait_for(reader.readuntil(b'"content":" x"'), PATIENCE_S)
        LEAVE[how](writer)
        await server.until_idle()
        assert (server.worker.num_cancelled, server.outcomes()) == (1, {"cancelled": 1})
        receipt = server.gateway.receipts.latest(1)[0]
        assert (receipt.outcome, receipt.ttft_s is not None) == ("cancelled", True)
        await short_request(server)


async def test_a_client_that_never_reads_meets_the_deadline():
    async def endless(request):
        while True:
            await asyncio.sleep(0)
            yield token(0, "x" * 10_000, request)

    async with running(endless) as server, connected(server) as (reader, writer):
        writer.write(ask("x", stream=True, chiasm={"timeout_s": 1.0}))
        await asyncio.wait_for(server.worker.started.wait(), PATIENCE_S)
        reader._transport.pause_reading()
        await server.until_ended(1, timeout_s=PATIENCE_S)
        assert server.outcomes() == {"deadline_exceeded": 1}
        await server.until_idle()


async def test_a_hundred_clients_leave_at_once():
    async with running(hang(1)) as server:
        connections = [await server.connect() for _ in range(100)]
        for _, writer in connections:
            writer.write(ask("a b", stream=True))
        await until(lambda: len(server.worker.requests) == 64)  # the rest waits
        for _, writer in connections:
            writer.close()
        await server.until_ended(100)
        await server.until_idle()
        assert server.outcomes() == {"cancelled": 100}
        server.worker.script = by_prompt()
        await short_request(server)
