"""The connection itself, before small applications: bodies of all sizes, responses of all kinds, order and limits."""

import asyncio
import http.client
import socket
import threading
from contextlib import asynccontextmanager, closing, suppress
from types import SimpleNamespace

import pytest

from chiasm.asgi.http.connection import Connection
from tests.integration.gateway_server import PATIENCE_S, read_response, until


async def read_all(receive):
    body, num_messages = b"", 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None, num_messages
        body += message["body"]
        num_messages += 1
        if not message["more_body"]:
            return body, num_messages


async def answer(send, body=b"", status=200, headers=None):
    headers = [(b"content-length", str(len(body)).encode())] if headers is None else headers
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def echo(scope, receive, send):
    body, num_messages = await read_all(receive)
    if body is not None:
        await answer(send, b"%d:" % num_messages + body)


class Served:
    """An application behind connections; knows those that are open."""

    def __init__(self, app, **options):
        self.state = SimpleNamespace(
            connections=set(), tasks=set(), total_requests=0, default_headers=[(b"date", b"now")]
        )
        self.config = SimpleNamespace(loaded_app=app, timeout_keep_alive=options.get("keep_alive_s", 60.0))

    def __call__(self):
        return Connection(self.config, self.state, {})


@asynccontextmanager
async def served(app, **options):
    made = Served(app, **options)
    server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
    try:
        yield made, reader, writer
    finally:
        writer.close()
        server.close()
        await until(lambda: not made.state.tasks and not made.state.connections)


def post(body, *headers, version="1.1", method="POST"):
    head = [f"{method} /x%20y?q=1 HTTP/{version}", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


SIZES = [0, 1, 40_000, 65_536, 65_537, 200_000, 3_000_000]


@pytest.mark.parametrize("size", SIZES)
async def test_a_body_of_stated_length_is_one_message(size):
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    async with served(echo) as (_, reader, writer):
        for _ in range(2):
            writer.write(post(body))
            status, headers, echoed = await read_response(reader)
            assert (status, headers["date"], headers["content-length"]) == (200, "now", str(size + 2))
            assert echoed == b"1:" + body


@pytest.mark.parametrize("size", [1, 70_000, 300_000])
@pytest.mark.parametrize("cut", [1, 60, 61, 5000])
async def test_heads_and_bodies_in_odd_pieces_and_requests_without_a_gap(size, cut):
    bodies = [b"%d" % i * size for i in range(3)]
    stream = b"".join(post(body) for body in bodies)
    async with served(echo) as (_, reader, writer):

        async def write():
            writer.write(stream[:cut])
            await writer.drain()
            await asyncio.sleep(0)
            writer.write(stream[cut:])

        writing = asyncio.create_task(write())
        for body in bodies:
            assert (await read_response(reader))[2].partition(b":")[2] == body
        await writing


async def test_a_chunked_body_and_a_chunked_response():
    async def stream(scope, receive, send):
        body, _ = await read_all(receive)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for at in range(0, len(body), 50_000):
            await send({"type": "http.response.body", "body": body[at : at + 50_000], "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    body = b"abc" * 60_000
    async with served(stream) as (_, reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for at in range(0, len(body), 7000):
            piece = body[at : at + 7000]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        writer.write(b"0\r\n\r\n")
        status, headers, echoed = await read_response(reader)
        assert (status, headers["transfer-encoding"], echoed) == (200, "chunked", body)


async def test_a_body_that_nobody_asks_for_is_neither_kept_nor_in_the_way():
    async def refuse(scope, receive, send):
        await answer(send, b"no", 413)

    async with served(refuse) as (made, reader, writer):
        for _ in range(2):
            writer.write(post(b"x" * 2_000_000))
            assert (await read_response(reader))[::2] == (413, b"no")
        [connection] = made.state.connections
        await until(lambda: connection._incoming is None)


async def test_an_application_that_stops_reading_midway_leaves_the_connection_usable():
    async def half(scope, receive, send):
        if scope["method"] == "POST":
            waiting = asyncio.create_task(receive())
            await asyncio.sleep(0.05)
            waiting.cancel()
            await answer(send, b"enough", 400)
        else:
            await answer(send, b"next")

    async with served(half) as (_, reader, writer):
        message = post(b"y" * 1_000_000)
        writer.write(message[:300_000])
        assert (await read_response(reader))[::2] == (400, b"enough")
        writer.write(message[300_000:] + b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await read_response(reader))[::2] == (200, b"next")


async def test_a_body_that_is_withheld_after_a_refusal_is_not_waited_for():
    async def refuse(scope, receive, send):
        await answer(send, b"no", 413)

    async with served(refuse, keep_alive_s=0.5) as (_, reader, writer):
        writer.write(post(b"x" * 100)[:-50])
        assert (await read_response(reader))[0] == 413
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""


async def refuse(scope, receive, send):
    await answer(send, b"no", 429)


def asked(port, body, headers):
    """What a client learns that sends all of its body before it reads, as most do."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as client:
        client.request("POST", "/", body, headers)
        made = client.getresponse()
        return made.status, made.getheader("connection"), made.read()


@pytest.mark.parametrize(("headers", "connection"), [({}, None), ({"Connection": "close"}, "close")])
async def test_a_large_body_does_not_cost_the_client_its_answer(headers, connection):
    async with served(refuse) as (made, _, writer):
        for body in (bytes(20_000_000), (bytes(100_000) for _ in range(200))):
            assert await asyncio.to_thread(asked, made.port, body, headers) == (429, connection, b"no")
        writer.close()
        await until(lambda: not made.state.connections)


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_without_end_is_not_read_for_ever(monkeypatch, is_chunked):
    monkeypatch.setattr("chiasm.asgi.http.call.MAX_DISCARDED_BYTES", 200_000)
    monkeypatch.setattr("chiasm.asgi.http.connection.MAX_DISCARDED_BYTES", 200_000)
    async with served(refuse) as (made, reader, writer):
        length = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: 1000000000"
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % length)
        status, headers, _ = await read_response(reader)
        assert (status, headers.get("connection")) == (429, None if is_chunked else "close")
        piece = b"%x\r\n%b\r\n" % (50_000, bytes(50_000)) if is_chunked else bytes(50_000)
        num_sent = 0
        while made.state.connections:
            writer.write(piece)
            num_sent += len(piece)
            with suppress(ConnectionError):
                await asyncio.wait_for(writer.drain(), PATIENCE_S)
            await asyncio.sleep(0)
        assert num_sent > 200_000


@pytest.mark.parametrize("headers", [(), ("Connection: close",)])
async def test_a_broken_body_after_the_answer_ends_the_connection_without_a_second_one(headers):
    async with served(refuse) as (_, reader, writer):
        head = ["POST / HTTP/1.1", "Host: x", "Transfer-Encoding: chunked", *headers]
        writer.write("\r\n".join(head).encode() + b"\r\n\r\n5\r\nab")
        assert (await read_response(reader))[0] == 429
        writer.write(b"cdeX\r\nnonsense")
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""


@pytest.mark.parametrize("size", [100, 100_000])
async def test_the_client_is_told_to_continue_only_when_somebody_reads(size):
    async def picky(scope, receive, send):
        if b"yes" in scope["query_string"]:
            await echo(scope, receive, send)
        else:
            await answer(send, b"no", 413)

    async with served(picky) as (_, reader, writer):
        head = f"HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {size}\r\n\r\n".encode()
        writer.write(b"POST /?yes " + head)
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"z" * size)
        assert (await read_response(reader))[2] == b"1:" + b"z" * size
        writer.write(b"POST /?no " + head)
        status, headers, _ = await read_response(reader)
        assert (status, headers["connection"]) == (413, "close")
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""


def told_nothing(port, has_answered):
    """What a client learns that waits to be told to continue, but not for ever: curl sends after a second."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 20000000\r\n\r\n")
        assert has_answered.wait(PATIENCE_S)
        client.sendall(bytes(20_000_000))
        return b"".join(iter(lambda: client.recv(2**16), b""))


async def test_a_body_that_comes_untold_just_when_it_is_refused_does_not_cost_the_client_its_answer():
    has_answered = threading.Event()

    async def app(scope, receive, send):
        await refuse(scope, receive, send)
        has_answered.set()

    async with served(app) as (made, _, _):
        learned = await asyncio.to_thread(told_nothing, made.port, has_answered)
    assert learned.startswith(b"HTTP/1.1 429 ")
    assert learned.endswith(b"connection: close\r\n\r\nno")


async def test_who_asks_for_a_body_after_its_answer_is_not_in_the_way_of_the_next_request():
    asked = []

    async def app(scope, receive, send):
        await refuse(scope, receive, send)
        asked.append(await receive())

    async with served(app) as (_, reader, writer):
        message = post(b"x" * 200_000)
        writer.write(message[:100_000])
        assert (await read_response(reader))[0] == 429
        await until(lambda: asked)
        writer.write(message[100_000:] + post(b"next"))
        assert (await read_response(reader))[0] == 429
    assert asked[0] == {"type": "http.disconnect"}


async def test_head_and_no_content_have_no_body():
    async def app(scope, receive, send):
        if scope["method"] == "HEAD":
            await answer(send, b"four")
        else:
            await answer(send, b"", 204, [])

    async with served(app) as (_, reader, writer):
        writer.write(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n")
        first = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        assert b"content-length: 4" in first
        second = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        assert second.startswith(b"HTTP/1.1 204 No Content\r\n")
        assert b"chunked" not in second


@pytest.mark.parametrize(
    ("version", "headers"), [("1.0", ()), ("1.0", ("Connection: keep-alive",)), ("1.1", ("Connection: close",))]
)
async def test_connections_that_end_with_the_response(version, headers):
    async with served(echo) as (_, reader, writer):
        writer.write(post(b"abc", *headers, version=version))
        rest = await asyncio.wait_for(reader.read(), PATIENCE_S)
        assert rest.endswith(b"1:abc")
        assert b"connection: close" in rest


async def test_the_scope_is_what_was_asked_for():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope)
        await answer(send)

    async with served(app) as (_, reader, writer):
        writer.write(post(b"", "X-Odd: \xc3\xa4"))
        await read_response(reader)
    [scope] = seen
    assert (scope["path"], scope["raw_path"], scope["query_string"]) == ("/x y", b"/x%20y", b"q=1")
    assert (scope["method"], scope["http_version"], scope["client"][0]) == ("POST", "1.1", "127.0.0.1")
    assert (b"x-odd", "\xc3\xa4".encode()) in scope["headers"]


FAILURES = {
    "before": [],
    "short": [(b"content-length", b"10")],
    "long": [(b"content-length", b"1")],
    "line break": [(b"x", b"a\r\nb: c"), (b"content-length", b"5")],
}


@pytest.mark.parametrize("how", FAILURES)
async def test_an_application_that_fails_is_an_error_and_no_half_answer(how, caplog):

    async def app(scope, receive, send):
        if how == "before":
            raise RuntimeError("broken")
        await answer(send, b"hello", headers=FAILURES[how])

    async with served(app) as (_, reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answered = await asyncio.wait_for(reader.read(), PATIENCE_S)
        assert answered.startswith(b"HTTP/1.1 500 ")
        assert answered.endswith(b"content-length: 0\r\nconnection: close\r\n\r\n")
        assert b"\nb: c" not in answered
    assert "An application failed" in caplog.text


async def test_half_a_stream_never_looks_whole():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError("broken")

    async with served(app) as (_, reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).endswith(b"4\r\nhalf\r\n")


async def test_an_application_that_says_nothing_is_an_error():
    async def silent(scope, receive, send):
        return

    async with served(silent) as (_, reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).startswith(b"HTTP/1.1 500 ")


@pytest.mark.parametrize("size", [100, 500_000])
async def test_leaving_is_noticed_by_whoever_waits(size):
    ends = []

    async def app(scope, receive, send):
        scope["extensions"]["chiasm.disconnect"](lambda: ends.append("told"))
        ends.append(await read_all(receive))
        await answer(send, b"too late")

    async with served(app) as (made, _, writer):
        writer.write(post(b"x" * size)[:-50])
        await until(lambda: made.state.tasks)
        writer.close()
        await until(lambda: not made.state.tasks)
    assert ends == ["told", (None, 0)]


async def test_a_client_that_reads_slowly_holds_back_the_application():
    sent = []

    async def flood(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(400):
            await send({"type": "http.response.body", "body": bytes(100_000), "more_body": True})
            sent.append(number)
        await send({"type": "http.response.body", "body": b""})

    async with served(flood) as (_, reader, writer):
        reader._transport.pause_reading()
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: sent)
        for _ in range(50):
            await asyncio.sleep(0.005)
        assert len(sent) < 400
        reader._transport.resume_reading()
        num_bytes = 0
        while num_bytes < 40_000_000:
            num_bytes += len(await asyncio.wait_for(reader.read(2**20), PATIENCE_S))
        await until(lambda: len(sent) == 400)


async def test_shutting_down_closes_idle_connections_and_lets_the_others_finish():
    may_end = asyncio.Event()

    async def slow(scope, receive, send):
        await may_end.wait()
        await answer(send, b"done")

    async with served(slow) as (made, reader, writer):
        idle, idle_writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: made.state.tasks and len(made.state.connections) == 2)
        for connection in list(made.state.connections):
            connection.shutdown()
        assert await asyncio.wait_for(idle.read(), PATIENCE_S) == b""
        idle_writer.close()
        may_end.set()
        assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).endswith(b"connection: close\r\n\r\ndone")


async def test_shutting_down_does_not_cut_an_answer_whose_body_still_comes():
    body, rest = bytes(100_000), bytes(3_000_000)
    async with served(refuse) as (made, reader, writer):
        writer.write(post(body + rest).removesuffix(rest))
        await until(lambda: not made.state.tasks and made.state.total_requests)
        (connection,) = made.state.connections
        connection.shutdown()
        assert not connection.transport.is_closing()
        writer.write(rest)
        await asyncio.wait_for(writer.drain(), PATIENCE_S)
        assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).endswith(b"\r\n\r\nno")
        await until(lambda: not made.state.connections)


async def test_shutting_down_waits_for_a_withheld_body_no_longer_than_before():
    async with served(refuse, keep_alive_s=0.2) as (made, reader, writer):
        writer.write(post(bytes(100_000))[:-1])
        await until(lambda: not made.state.tasks and made.state.total_requests)
        for connection in list(made.state.connections):
            connection.shutdown()
        assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).endswith(b"\r\n\r\nno")
        await until(lambda: not made.state.connections)
