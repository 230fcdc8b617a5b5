"""HTTP itself: connections that are kept, bodies in pieces, sizes, and hostile framing."""

import asyncio
import gc
import json

import pytest

from tests.fakes import say
from tests.integration.gateway_server import PATIENCE_S, connected, post_bytes, read_response, running

ASK = json.dumps({"messages": [{"role": "user", "content": "a b"}]}).encode()


async def test_a_connection_serves_many_requests():
    async with running() as server, connected(server) as (reader, writer):
        for path, status in (("/v1/chat/completions", 200), ("/nowhere", 404), ("/v1/chat/completions", 200)):
            writer.write(post_bytes(ASK, path))
            assert (await read_response(reader))[0] == status


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (post_bytes(ASK), 200),
        (post_bytes(ASK[:-1] + b', "stream": true}'), 200),
        (post_bytes(b"{"), 400),
        (post_bytes(ASK, "/nowhere"), 404),
    ],
    ids=["whole", "stream", "refused", "unknown"],
)
async def test_requests_leave_nothing_to_the_garbage_collector(request_bytes, status):
    """Its pauses would be the slowest requests."""
    async with running() as server, connected(server) as (reader, writer):

        async def ask():
            writer.write(request_bytes)
            assert (await read_response(reader))[0] == status

        for _ in range(3):  # what is made once
            await ask()
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                await ask()
            assert gc.collect() < 20
        finally:
            gc.enable()


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
        assert b"100 Continue" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
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
            answer = await asyncio.wait_for(reader.read(4096), PATIENCE_S)
            assert not answer or int(answer.split(b" ", 2)[1]) >= 400
        async with connected(server) as (reader, writer):
            writer.write(post_bytes(ASK))
            assert (await read_response(reader))[0] == 200
        await server.until_idle()


RAW_PATHS = ["/v1/models", "//v1/models", "/v1//models", "/V1/models", "/%76%31/models", "/v1%2Fmodels", "/%2Fhealth",
             "/./health", "/../health", "/health/", "/health/../v1/models", "/health%2f..%2fv1%2fmodels", "/health;x",
             "/Health", "/%2e/health", "/metrics", "/debug/receipts", "/openapi.json", "/nowhere", "//health",
             "http://x/v1/models", "/ready%00", "/?/health"]  # fmt: skip


async def test_no_spelling_of_a_path_gets_round_the_key():
    async with running(api_keys=("k",)) as server, connected(server) as (reader, writer):
        for path in RAW_PATHS:
            for method in ("GET", "POST"):
                writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
                assert (await read_response(reader))[0] == 401, (method, path)
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\n\r\n")
        assert (await read_response(reader))[0] == 200
        for path in ("/health", "/ready", "/health?x=1", "/%68ealth"):
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert (await read_response(reader))[0] == 200


@pytest.mark.parametrize("start", [b"", b"POST /v1/comp", b"POST / HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_a_head_that_never_ends_is_not_waited_for(start):
    async with running(keep_alive_s=0.2) as server, connected(server) as (reader, writer):
        writer.write(start)
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""


async def test_a_head_that_drips_has_one_deadline():
    async with running(keep_alive_s=0.3) as server, connected(server) as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\n")
        num_lines = 0
        while not (reader.at_eof() or writer.is_closing()) and num_lines < 500:
            writer.write(b"x-%d: y\r\n" % num_lines)
            num_lines += 1
            await asyncio.sleep(0.02)
        assert num_lines < 500, "each line would have started the time anew"


async def test_the_deadline_of_a_head_is_not_that_of_a_request():
    async with running(say(0.6), keep_alive_s=0.5) as server, connected(server) as (reader, writer):
        head, _, body = post_bytes(ASK).partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n" + body[:5])
        await asyncio.sleep(0.8)
        writer.write(body[5:])
        assert (await read_response(reader))[0] == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
async def test_a_body_that_never_ends_is_answered_as_late(path):
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n{{".encode()
    async with running(request_timeout_s=0.3) as server, connected(server) as (reader, writer):
        writer.write(head)
        status, _, body = await asyncio.wait_for(read_response(reader), PATIENCE_S)
        assert (status, json.loads(body)["error"]["code"]) == (408, "body_timeout")


@pytest.mark.parametrize("line", [b"GET /" + b"a" * 600_000, b"GET / HTTP/1.1\r\nx: " + b"a" * 600_000,
                                  b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 100_000])  # fmt: skip
async def test_an_endless_head_is_refused(line):
    async with running() as server:
        async with connected(server) as (reader, writer):
            for start in range(0, len(line), 65_536):
                writer.write(line[start : start + 65_536])
                await asyncio.sleep(0.001)
            answer = await asyncio.wait_for(reader.read(4096), PATIENCE_S)
            assert answer.split(b" ", 2)[1] in (b"431", b"400")
        async with connected(server) as (reader, writer):
            writer.write(post_bytes(ASK))
            assert (await read_response(reader))[0] == 200


async def test_no_header_names_the_software():
    async with running() as server, connected(server) as (reader, writer):
        writer.write(post_bytes(ASK))
        _, headers, _ = await read_response(reader)
        assert "server" not in headers
