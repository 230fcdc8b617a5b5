"""A small client for one streamed question, or one call: the standard library starts faster than any HTTP package."""

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from chiasm.errors import ChiasmError, EngineError, InvalidSettingError, error_class

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 300.0


def call(
    server: str,
    api_key: str | None,
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
    timeout_s: float = READ_TIMEOUT_S,
) -> Any:
    """Ask a server's API once and return the answer's JSON. Raises `ChiasmError`, as the server has it."""
    connection, prefix = _connection(server)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    try:
        connection.connect()
        connection.sock.settimeout(timeout_s)
        connection.request(method, prefix + path, None if body is None else json.dumps(body).encode(), headers)
        response = connection.getresponse()
        data = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise _no_answer(server, error) from error
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise _without_operators(path, data) or _failure(response.status, data)
    try:
        return json.loads(data)
    except ValueError as error:
        raise EngineError("The server's answer is no JSON", hint="Is it a Chiasm server?") from error


def _connection(server: str) -> tuple[http.client.HTTPConnection, str]:
    """A connection and the path before the API's and its `/v1`. Raises `InvalidSettingError` for what is no URL."""
    try:
        parts = urlsplit(server if "//" in server else f"http://{server}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise InvalidSettingError(f"'{server}' is not a server's URL", hint="For example http://127.0.0.1:8000")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(host, port, timeout=CONNECT_TIMEOUT_S), parts.path.rstrip("/").removesuffix("/v1")


def _no_answer(server: str, error: Exception) -> EngineError:
    return EngineError(
        f"No answer from {server}: {error or type(error).__name__}",
        hint="Is it running? `chiasm serve` starts a server",
    )


class ChatClient:
    """Asks a server that speaks the OpenAI API. Errors come back as the classes they were raised as."""

    def __init__(self, server: str, api_key: str | None = None) -> None:
        """Take `http://host:port`, with or without `/v1`. Raises `InvalidSettingError` for anything else."""
        self._server = server
        self._connection, prefix = _connection(server)
        self._path = prefix + "/v1/chat/completions"
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def stream(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the chunks of a streamed answer. Raises `ChiasmError`."""
        try:
            yield from self._stream(json.dumps(body | {"stream": True}).encode())
        except (OSError, http.client.HTTPException) as error:
            raise _no_answer(self._server, error) from error
        finally:
            self._connection.close()

    def _stream(self, body: bytes) -> Iterator[dict[str, Any]]:
        self._connection.connect()
        self._connection.sock.settimeout(READ_TIMEOUT_S)
        self._connection.request("POST", self._path, body, self._headers)
        response = self._connection.getresponse()
        if response.status != http.client.OK:
            raise _failure(response.status, response.read())
        for line in response:
            data = line.removeprefix(b"data: ").strip()
            if data == b"[DONE]":
                return
            if data:
                chunk = json.loads(data)
                if "error" in chunk:
                    raise _rebuilt(chunk["error"])
                yield chunk
        raise EngineError("The answer was cut off")


def _without_operators(path: str, body: bytes) -> ChiasmError | None:
    """Why a server has no such path below `/admin/`, where that is the answer."""
    if not path.startswith("/admin/") or b'"not_found"' not in body:
        return None
    return EngineError(
        "The server lets no operators in: it has neither gateway.admin_keys nor a keys file",
        hint="'chiasm keys new operators --scope admin' makes a key; start the server with "
        "--set gateway.keys_file=keys.toml, and give the key to this command as --api-key",
    )


def _failure(status: int, body: bytes) -> ChiasmError:
    try:
        return _rebuilt(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return EngineError(f"The server answered with HTTP status {status} and no reason")


def _rebuilt(error: dict[str, Any]) -> ChiasmError:
    kind = error_class(str(error.get("code")))
    return kind(str(error.get("message")), hint=error.get("hint"))
