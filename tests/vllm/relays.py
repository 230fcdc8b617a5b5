"""Stands between a gateway and one vLLM server, and changes what they say to each other."""

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from chiasm.launch.vllm.process import connection_to

Body = dict[str, Any]
Change = Callable[[Body], Body]
_CHAT = "/v1/chat/completions"
_TIMEOUT_S = 120.0
_OF_ONE_CONNECTION = ("host", "connection", "content-length", "transfer-encoding")


class CutOff(Exception):  # noqa: N818 - what happens to the call
    """Raised by a change: the call's connection ends without an answer."""


def unchanged(body: Body) -> Body:
    """Say it as it was said."""
    return body


class Relay:
    """Hands calls on to a server.

    Attributes:
        to: The server's address; another one may take its place.
        asked: What becomes of a chat call on its way to the server.
        answered: What becomes of an answer that is no stream.
    """

    def __init__(self, to: str) -> None:
        self.to = to
        self.asked: Change = unchanged
        self.answered: Change = unchanged
        self._server = _Server(self)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Take no more calls."""
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def relay(to: str) -> Iterator[Relay]:
    """A relay for the block."""
    made = Relay(to)
    try:
        yield made
    finally:
        made.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, owner: Relay) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.owner = owner

    def handle_error(self, *_: object) -> None:
        """Either side may leave at any moment."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""

    def _hand_on(self) -> None:
        owner, is_chat = self.server.owner, self.path == _CHAT
        data = self.rfile.read(int(self.headers.get("content-length", 0)))
        try:
            sent = json.dumps(owner.asked(json.loads(data))).encode() if is_chat else data
        except CutOff:
            self.close_connection = True
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_ONE_CONNECTION}
        connection = connection_to(owner.to, _TIMEOUT_S)
        try:
            connection.request(self.command, self.path, sent, headers)
            self._answer(connection.getresponse(), owner.answered if is_chat else unchanged)
        except OSError:
            self.close_connection = True
        finally:
            with suppress(OSError):
                connection.close()

    do_GET = do_POST = _hand_on  # noqa: N815 - names that http.server looks for

    def _answer(self, response: http.client.HTTPResponse, change: Change) -> None:
        self.send_response(response.status)
        self.send_header("content-type", response.headers.get("content-type", "application/octet-stream"))
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            while data := response.read1(65536):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.write(b"0\r\n\r\n")
            return
        data = response.read()
        if response.status == 200 and change is not unchanged:
            data = json.dumps(change(json.loads(data))).encode()
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
