"""HTTP itself: connections that are kept, bodies in pieces, sizes, and hostile framing."""

import asyncio
import json

import pytest

from tests.integration.gateway_server import connected, post_bytes, read_response, running

ASK = json.dumps({"messages": [{"role": "user", "content": "a b"}]}).encode()


async def test_a_connection_serves_many_requests():
    async with running() as server, connected(server) as (reader, writer):
        for path, status in (("/v1/chat/completions", 200), ("/nowhere", 404), ("/v1/chat/completions", 200)):
            writer.write(post_bytes(ASK, path))
            assert (await read_response(reader))[0] == status


async def test_pipelined_requests_are_answered_in_order():
    async with running() as server, connected(server) as (reader, writer):
        bodies = [json.dumps({"messages": [{"role": "user", "content": f"n{i}"}]}).encode() for i in range(5)]
        writer.write(b"".join(post_bytes(body) for body in bodies))
        for index in range(5):
            _, _, body = await read_response(reader)
            assert json.loads(body)["choices"][0]["message"]["content"] == f"n{index}"


async def test_a_body_in_pieces():
    async with running() as server, connected(server) as (reader, writer):
        message = post_bytes(ASK)
        for start in range(0, len(message), 40):
            writer.write(message[start : start + 40])
            await asyncio.sleep(0.002)
        assert (await read_response(reader))[0] == 200


async def test_a_chunked_body():
    async with running(max_body_bytes=1024) as server, connected(server) as (reader, writer):
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(ASK), ASK))
        assert (await read_response(reader))[0] == 200
        writer.write(head + b"400\r\n" + b"x" * 1024 + b"\r\n400\r\n" + b"x" * 1024 + b"\r\n0\r\n\r\n")
        assert (await read_response(reader))[0] == 413


async def test_an_announced_body_that_is_too_large_is_refused_before_it_comes():
    async with running(max_body_bytes=1024) as server, connected(server) as (reader, writer):
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n")
        status, _, body = await read_response(reader)
        assert (status, json.loads(body)["error"]["code"]) == (413, "request_too_large")
        await server.until_idle()


async def test_expect_100_continue():
    async with running() as server, connected(server) as (reader, writer):
        head, _, body = post_bytes(ASK, headers=["Expect: 100-continue"]).partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        assert b"100 Continue" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        writer.write(body)
        assert (await read_response(reader))[0] == 200


@pytest.mark.parametrize(
    "message",
    [
        b"GET /\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_broken_framing_harms_nobody(message):
    async with running() as server:
        async with connected(server) as (reader, writer):
            writer.write(message + b"\r\n\r\n")
            answer = await asyncio.wait_for(reader.read(4096), 5)
            assert not answer or int(answer.split(b" ", 2)[1]) >= 400
        async with connected(server) as (reader, writer):
            writer.write(post_bytes(ASK))
            assert (await read_response(reader))[0] == 200
        await server.until_idle()


async def test_no_header_names_the_software():
    async with running() as server, connected(server) as (reader, writer):
        writer.write(post_bytes(ASK))
        _, headers, _ = await read_response(reader)
        assert "server" not in headers
