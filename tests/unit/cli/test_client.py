"""The client of `chiasm ask` against servers that answer in every way, good and bad."""

import json
import socketserver
import threading
from contextlib import contextmanager

import pytest

from chiasm.cli.client import ChatClient, call
from chiasm.errors import (
    AuthenticationError,
    CapacityError,
    ChiasmError,
    EngineError,
    InvalidSettingError,
    RequestError,
)


@contextmanager
def answering(answer):
    """A server that reads one request and sends `answer`."""
    seen = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += self.rfile.readline()
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            seen.append(head + self.rfile.read(length))
            self.wfile.write(answer)

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
        server.shutdown()
        thread.join()


def response(body, status="200 OK"):
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(("suffix", "path"), [("", "/admin/x"), ("/v1", "/admin/x"), ("/below/v1/", "/below/admin/x")])
def test_calls_keep_the_path_that_a_proxy_wants(suffix, path):
    with answering(response(b"{}")) as (address, seen):
        assert call(address + suffix, None, "POST", "/admin/x", {"n": 1}) == {}
    assert seen[0].startswith(f"POST {path} HTTP/1.1\r\n".encode())


def test_a_server_without_operators_says_how_to_have_some():
    body = b'{"error":{"message":"No such path","code":"not_found"}}'
    with (
        answering(response(body, "404 Not Found")) as (address, _),
        pytest.raises(EngineError, match=r"neither gateway\.admin_keys nor a keys file") as caught,
    ):
        call(address, None, "POST", "/admin/workers", {})
    assert "chiasm keys new operators --scope admin" in caught.value.hint
    with answering(response(body, "404 Not Found")) as (address, _), pytest.raises(ChiasmError, match="No such path"):
        call(address, None, "POST", "/v1/elsewhere", {})


def test_chunks_until_the_end_mark():
    body = b'data: {"n": 1}\n\n: comment\n\ndata: {"n": 2}\n\ndata: [DONE]\n\ndata: {"n": 3}\n\n'.replace(
        b": comment\n\n", b""
    )
    with answering(response(body)) as (address, seen):
        assert list(ChatClient(address, "k").stream({"a": 1})) == [{"n": 1}, {"n": 2}]
    assert seen[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"Authorization: Bearer k\r\n" in seen[0]
    assert seen[0].endswith(b'{"a": 1, "stream": true}')


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("invalid_request", RequestError),
        ("invalid_api_key", AuthenticationError),
        ("overloaded", CapacityError),
        ("of_tomorrow", ChiasmError),
    ],
)
def test_the_servers_errors_come_back_as_what_they_were(code, kind):
    body = json.dumps({"error": {"message": "m", "code": code, "hint": "h"}}).encode()
    with answering(response(body, "400 Bad")) as (address, _), pytest.raises(kind, match="m") as caught:
        list(ChatClient(address).stream({}))
    assert caught.value.hint == "h"


def test_an_error_inside_the_stream():
    error = b'data: {"error": {"message": "gone", "code": "engine_dead", "hint": null}}\n\n'
    with answering(response(b'data: {"n": 1}\n\n' + error + b"data: [DONE]\n\n")) as (address, _):
        chunks = ChatClient(address).stream({})
        assert next(chunks) == {"n": 1}
        with pytest.raises(EngineError, match="gone"):
            next(chunks)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (response(b"<html>", "502 Bad Gateway"), "HTTP status 502"),
        (response(b'{"error": "text"}', "500 x"), "HTTP status 500"),
        (response(b"[]", "404 x"), "HTTP status 404"),
        (response(b'data: {"n": 1}\n\n'), "cut off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ndata", "No answer from"),
        (b"not http\r\n\r\n", "No answer from"),
        (b"", "No answer from"),
    ],
)
def test_broken_servers(answer, message):
    with answering(answer) as (address, _), pytest.raises(EngineError, match=message):
        list(ChatClient(address).stream({}))


def test_nobody_listens():
    with pytest.raises(EngineError, match=r"No answer from 127\.0\.0\.1:1") as caught:
        list(ChatClient("127.0.0.1:1").stream({}))
    assert "chiasm serve" in caught.value.hint


@pytest.mark.parametrize(
    ("server", "path"),
    [
        ("http://h:1", "/v1/chat/completions"),
        ("http://h:1/", "/v1/chat/completions"),
        ("http://h:1/v1", "/v1/chat/completions"),
        ("http://h:1/v1/", "/v1/chat/completions"),
        ("https://h/base/v1", "/base/v1/chat/completions"),
        ("h:1", "/v1/chat/completions"),
    ],
)
def test_forms_of_a_server(server, path):
    assert ChatClient(server)._path == path


@pytest.mark.parametrize("server", ["ftp://h", "http://", "//", "http://h:port", "http://[::1"])
def test_what_is_no_server(server):
    with pytest.raises(InvalidSettingError):
        ChatClient(server)
