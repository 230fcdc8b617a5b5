"""What no server should take, sent to see that it does not.

A server that takes them all looks at nothing but its own machine: an address that no network leads on, and a file
that everybody may read.
"""

import struct
import zlib
from typing import Any

import msgspec
import pybase64

from chiasm.reporting.content import Refusal
from chiasm.reporting.server import ServerView, fault_of

_OK = 200
_PATH = "/v1/chat/completions"


async def try_refusals(server: ServerView, model: str, *, takes_images: bool, max_tokens: int) -> tuple[Refusal, ...]:
    """Send each and note the answers. Raises `EngineError` when there are none."""
    tries = {"another model's name": _question("Hello") | {"model": f"not-{model}"[:64]}}
    tries["a prompt longer than the model takes"] = _question("word " * (2 * max_tokens))
    if takes_images:
        tries |= {
            "a picture at an address of the machine's own network": _picture(
                "http://169.254.169.254/latest/meta-data/"
            ),
            "a picture in a file of the server": _picture("file:///etc/passwd"),
            "a picture that is broken": _picture(_data_url(b"\x89PNG\r\n\x1a\nbroken")),
            "a picture whose header claims 30,000 x 30,000 pixels": _picture(_data_url(_huge_png())),
        }
    return tuple([await _tried(server, what, body) for what, body in tries.items()])


async def _tried(server: ServerView, what: str, body: dict[str, Any]) -> Refusal:
    status, answer = await server.send("POST", _PATH, body)
    if status == _OK:
        return Refusal(sent=what, status=status, code=None, message="It was taken.")
    fault = fault_of(status, answer)
    return Refusal(sent=what, status=status, code=_code(answer), message=fault.message)


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
