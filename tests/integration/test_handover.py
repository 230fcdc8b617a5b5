"""A server whose socket another process has taken over: it refuses nothing, and every connection learns of the end."""

import asyncio
import json

import pytest

from chiasm.launch.server import serve_app
from tests.fakes import say
from tests.integration.gateway_server import PATIENCE_S, connected, post_bytes, read_response, running, until


def asking(words, **fields):
    return post_bytes(json.dumps({"prompt": words, "max_tokens": 1000, **fields}).encode(), "/v1/completions")


class Handed:
    """A gateway that can be handed over."""

    def __init__(self, delay_s, **settings):
        self.server = running(say(delay_s), **settings)
        self.over, self.stop = asyncio.Event(), asyncio.Event()

    async def __aenter__(self):
        ready = asyncio.Event()
        server = self.server
        self.serving = asyncio.create_task(
            serve_app(server.app, server.gateway, server.listener, server.settings, self.stop, ready.set, self.over)
        )
        await asyncio.wait_for(ready.wait(), PATIENCE_S)
        return self

    async def __aexit__(self, *_):
        self.stop.set()
        await asyncio.wait_for(self.serving, 2 * PATIENCE_S)

    async def is_closed(self):
        """Whether nobody listens here any more."""
        try:
            _, writer = await self.server.connect()
        except OSError:
            return True
        writer.close()
        return False


async def test_what_is_open_goes_on_and_connections_end_after_their_next_answer():
    async with Handed(0.01, drain_timeout_s=PATIENCE_S) as handed, connected(handed.server) as (reader, writer):
        writer.write(asking("first"))
        status, headers, _ = await read_response(reader)
        assert (status, "connection" in headers) == (200, False)
        async with connected(handed.server) as (streamed, asked):
            asked.write(asking("word " * 100, stream=True))
            await until(lambda: handed.server.gateway.admission.num_open == 1)
            head = await asyncio.wait_for(streamed.readuntil(b"\r\n\r\n"), PATIENCE_S)
            assert b"200 OK" in head
            handed.over.set()
            async with asyncio.timeout(PATIENCE_S):
                while not await handed.is_closed():  # noqa: ASYNC110 - nobody announces it
                    await asyncio.sleep(0.01)
            writer.write(asking("second"))
            status, headers, _ = await read_response(reader)
            assert (status, headers["connection"]) == (200, "close")
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
            body = await asyncio.wait_for(streamed.readuntil(b"[DONE]"), PATIENCE_S)
            assert body.count(b"word") == 100
        await asyncio.wait_for(asyncio.shield(handed.serving), PATIENCE_S)
        assert handed.server.outcomes() == {"finished": 3}


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_the_time_to_leave_is_bounded(is_stopped):
    async with Handed(0.05, drain_timeout_s=0.3) as handed, connected(handed.server) as (reader, writer):
        writer.write(asking("word " * 600))  # takes half a minute
        await until(lambda: handed.server.gateway.admission.num_open == 1)
        handed.over.set()
        if is_stopped:
            handed.stop.set()
        status, _, body = await read_response(reader)
        assert (status, json.loads(body)["error"]["code"]) == (503, "shutting_down")
        await asyncio.wait_for(asyncio.shield(handed.serving), PATIENCE_S)
