"""What no server should take, sent to see that it does not.

A server that takes them all looks at an address that stays on its host or with its cloud's metadata, and at a file
that everybody may read. What counts is why it refuses: one that says that the file is no picture has read it.
"""

import struct
import zlib
from typing import Any, NamedTuple

import msgspec
import pybase64

from chiasm.bench.server import ServerView, fault_of
from chiasm.reporting.content import Refusal

_OK = 200
_PATH = "/v1/chat/completions"


class _Try(NamedTuple):
    """What is sent, and the codes that say that it was refused for what it is."""

    sent: str
    body: dict[str, Any]
    codes: tuple[str, ...]


async def try_refusals(server: ServerView, model: str, *, takes_images: bool, max_tokens: int) -> tuple[Refusal, ...]:
    """Send each and note the answers. Raises `EngineError` when there are none."""
    tries = [
        _Try("another model's name", _question("Hello") | {"model": f"not-{model}"[:64]}, ("model_not_found",)),
        _Try(
            "a prompt longer than the model takes",
            _question("word " * (2 * max_tokens)),
            ("context_length_exceeded", "request_too_large"),
        ),
        *(_pictures() if takes_images else ()),
    ]
    return tuple([await _tried(server, one) for one in tries])


def _pictures() -> tuple[_Try, ...]:
    return (
        _Try(
            "a picture at an address of the machine's own network",
            _picture("http://169.254.169.254/latest/meta-data/"),
            ("media_refused",),
        ),
        _Try("a picture in a file of the server", _picture("file:///etc/passwd"), ("media_refused",)),
        _Try(
            "a picture that is broken",
            _picture(_data_url(b"\x89PNG\r\n\x1a\nbroken")),
            ("media_error", "media_undecodable", "media_unsupported"),
        ),
        _Try(
            "a picture whose header claims 30,000 x 30,000 pixels",
            _picture(_data_url(_huge_png())),
            ("media_too_large",),
        ),
    )


async def _tried(server: ServerView, one: _Try) -> Refusal:
    status, answer = await server.send("POST", _PATH, one.body)
    if status == _OK:
        return Refusal(sent=one.sent, status=status, code=None, message="It was taken.")
    code, fault = _code(answer), fault_of(status, answer)
    if code not in one.codes:
        message = f"Not refused for what it is, but {code}: {fault.message}"
        return Refusal(sent=one.sent, status=status, code=None, message=message)
    return Refusal(sent=one.sent, status=status, code=code, message=fault.message)


def _code(answer: bytes) -> str:
    try:
        return str(msgspec.json.decode(answer)["error"]["code"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return "unknown"


def _question(*parts: Any) -> dict[str, Any]:
    content = [part if isinstance(part, dict) else {"type": "text", "text": part} for part in parts]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 1}


def _picture(url: str) -> dict[str, Any]:
    return _question({"type": "image_url", "image_url": {"url": url}}, "What is this?")


def _data_url(data: bytes) -> str:
    return f"data:image/png;base64,{pybase64.b64encode(data).decode()}"


def _huge_png() -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + chunk
