"""Questions whose answers are read for their times and receipts; to a server, streamed as clients ask them."""

import time
from typing import Any, Protocol

import msgspec
import pybase64

from chiasm.bench.server import Fault, ServerView, fault_of
from chiasm.errors import EngineError, InvalidSettingError
from chiasm.observability.receipt import Receipt

_OK = 200


class _Chiasm(msgspec.Struct):
    receipt: Receipt | None = None


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    chiasm: _Chiasm | None = None
    error: Fault | None = None


_CHUNKS = msgspec.json.Decoder(_Chunk)


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt, and what the client saw: seconds to the first text, and to the end of the answer."""

    receipt: Receipt
    ttft_s: float
    e2e_s: float


class Asks(Protocol):
    """What can be asked and answers with receipts."""

    async def ask(self, text: str, *, num_output_tokens: int, picture: bytes | None = None) -> Answered:
        """Ask for exactly so many tokens. Raises `ChiasmError`."""
        ...


class Asking:
    """Asks one server; see `Asks`."""

    def __init__(self, server: ServerView) -> None:
        self._server = server

    async def ask(self, text: str, *, num_output_tokens: int, picture: bytes | None = None) -> Answered:
        """Ask, and read the answer to its end.

        Raises:
            EngineError: The server does not answer, or not in time.
            InvalidSettingError: It answers without a receipt: it is not one of Chiasm's.
            ChiasmError: What it says is wrong.
        """
        reading, body = Reading(time.perf_counter()), _body(text, num_output_tokens, picture)
        async with self._server.answer("POST", "/v1/chat/completions", body) as response:
            if response.status != _OK:
                raise fault_of(response.status, await response.read())
            async for line in response.content:
                reading.line(line, time.perf_counter())
        return reading.answered()


class Reading:
    """Takes a streamed answer line by line."""

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._first_s: float | None = None
        self._now_s = started_s
        self._receipt: Receipt | None = None

    def line(self, line: bytes, now_s: float) -> None:
        """One line of it, and when it came. Raises what an error in the stream says."""
        self._now_s = now_s
        data = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or data == b"[DONE]":
            return
        try:
            chunk = _CHUNKS.decode(data)
        except msgspec.MsgspecError as error:
            raise EngineError("The server streams something unreadable") from error
        if chunk.error is not None:
            raise chunk.error.as_raised()
        if any(one.delta is not None and one.delta.content for one in chunk.choices):
            self._first_s = now_s if self._first_s is None else self._first_s
        if chunk.chiasm is not None and chunk.chiasm.receipt is not None:
            self._receipt = chunk.chiasm.receipt

    def answered(self) -> Answered:
        """What came. Raises `InvalidSettingError` where there was no receipt."""
        if self._receipt is None:
            raise InvalidSettingError(
                "The server's answers have no receipts", hint="Only Chiasm's own servers can be profiled."
            )
        # An answer may be of tokens that make no text: then only the server knows when the first one came.
        first_s = self._first_s if self._first_s is not None else self._started_s + (self._receipt.ttft_s or 0.0)
        return Answered(
            receipt=self._receipt,
            ttft_s=first_s - self._started_s,
            e2e_s=self._now_s - self._started_s,
        )


def _body(text: str, num_output_tokens: int, picture: bytes | None) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if picture is not None:
        url = f"data:image/jpeg;base64,{pybase64.b64encode(picture).decode()}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return {
        "messages": [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}],
        "max_tokens": num_output_tokens,
        "min_tokens": num_output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "chiasm": {"receipt": True},
    }
