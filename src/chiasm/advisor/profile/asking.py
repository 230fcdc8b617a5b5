"""Questions to a server whose answers are only read for their receipts."""

from types import TracebackType
from typing import Any

import aiohttp
import msgspec
import pybase64

from chiasm.bench.target import Target
from chiasm.errors import ChiasmError, EngineError, InvalidSettingError, error_class
from chiasm.observability.receipt import Receipt

_OK = 200
_TIMEOUT_S = 120.0


class _Chiasm(msgspec.Struct):
    receipt: Receipt | None = None


class _Error(msgspec.Struct):
    code: str | int | None = None
    message: str = ""
    hint: str = ""


class _Answer(msgspec.Struct):
    chiasm: _Chiasm | None = None
    error: _Error | None = None


class Asking:
    """A connection pool to one server; an asynchronous context manager."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Asking":
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        self._session = aiohttp.ClientSession(headers=self._target.header_fields, timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, text: str, *, num_output_tokens: int, picture: bytes | None = None) -> Receipt:
        """Ask, and return the receipt.

        Raises:
            EngineError: The server does not answer, or not in time.
            InvalidSettingError: It answers without a receipt: it is not one of Chiasm's.
            ChiasmError: What it says is wrong.
        """
        assert self._session is not None, "used as a context manager"
        try:
            async with self._session.post(
                f"{self._target.url}/v1/chat/completions", json=_body(text, num_output_tokens, picture)
            ) as response:
                return _receipt(response.status, await response.read())
        except (TimeoutError, aiohttp.ClientError) as error:
            raise EngineError(
                f"No answer from {self._target.url}: {type(error).__name__}", hint="Is it running? `chiasm serve`"
            ) from error


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
        "chiasm": {"receipt": True},
    }


def _receipt(status: int, body: bytes) -> Receipt:
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except msgspec.MsgspecError as error:
        raise EngineError(f"The server answered with status {status} and something unreadable") from error
    if status != _OK:
        raise _said(status, answer.error)
    if answer.chiasm is None or answer.chiasm.receipt is None:
        raise InvalidSettingError(
            "The server's answers have no receipts", hint="Only Chiasm's own servers can be profiled."
        )
    return answer.chiasm.receipt


def _said(status: int, error: _Error | None) -> ChiasmError:
    if error is None:
        return EngineError(f"The server answered with status {status}")
    return error_class(str(error.code))(error.message, hint=error.hint)
