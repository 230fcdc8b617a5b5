"""A running server of Chiasm's, as its operator may see it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, TypeVar

import aiohttp
import msgspec

from chiasm.bench.target import Target
from chiasm.errors import ChiasmError, EngineError, InvalidSettingError, error_class

T = TypeVar("T")
_TIMEOUT_S = 120.0
_OK = 200


class Fault(msgspec.Struct):
    """What a server says is wrong."""

    code: str | int | None = None
    message: str = ""
    hint: str | None = None

    def as_raised(self) -> ChiasmError:
        """It as the class it was raised as."""
        return error_class(str(self.code))(self.message, hint=self.hint)


class _Faults(msgspec.Struct):
    error: Fault


class ServerView:
    """A connection pool to one server; an asynchronous context manager."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "ServerView":
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        self._session = aiohttp.ClientSession(headers=self.target.header_fields, timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, kind: type[T]) -> T:
        """The JSON at a path, as a type of ours.

        Raises:
            EngineError: Nobody answers, or not in time.
            InvalidSettingError: The answer is not that of a server of Chiasm's.
            ChiasmError: What the server says is wrong.
        """
        status, body = await self.send("GET", path)
        if status != _OK:
            raise fault_of(status, body)
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.MsgspecError as error:
            raise InvalidSettingError(
                f"{path} of this server cannot be understood: {error}", hint="Is it Chiasm, of this version?"
            ) from error

    async def send(self, method: str, path: str, body: dict[str, Any] | bytes | None = None) -> tuple[int, bytes]:
        """Status and body of an answer. Raises `EngineError` when there is none."""
        async with self.answer(method, path, body) as response:
            return response.status, await response.read()

    @asynccontextmanager
    async def answer(
        self, method: str, path: str, body: dict[str, Any] | bytes | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer that is read inside the block. Raises `EngineError` when there is none, or not all of it comes."""
        assert self._session is not None, "used as a context manager"
        data = msgspec.json.encode(body) if isinstance(body, dict) else body
        headers = {"Content-Type": "application/json"} if data is not None else {}
        try:
            async with self._session.request(
                method, self.target.url + path, data=data, headers=headers, allow_redirects=False
            ) as response:
                yield response
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise EngineError(
                f"No answer from {self.target.url}: {type(error).__name__}",
                hint="Is it running? `chiasm serve` starts a server",
            ) from error


def fault_of(status: int, body: bytes) -> ChiasmError:
    """What an answer that is not 200 says, as the class it was raised as."""
    try:
        return msgspec.json.decode(body, type=_Faults).error.as_raised()
    except msgspec.MsgspecError:
        return EngineError(f"The server answered with HTTP status {status} and no reason")
