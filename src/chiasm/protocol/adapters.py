"""LoRA adapters in the worker contract: which one a request means, and how workers are told to load one."""

from typing import Annotated, Protocol, runtime_checkable

import msgspec
from msgspec import Meta

from chiasm.errors import EngineError, InvalidRequestError
from chiasm.protocol.contract import CONTRACT_VERSION, check_gateway

AdapterName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
AdapterRevision = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]

LOAD_PATH = "/adapters/load"
UNLOAD_PATH = "/adapters/unload"


class AdapterRef(msgspec.Struct, frozen=True, kw_only=True):
    """The adapter that a request is computed with. A worker that has other files under the path refuses it.

    `revision` is a hash of the files and part of the key of everything cached that follows from the language model.
    """

    name: AdapterName
    revision: AdapterRevision
    directory: Annotated[str, Meta(max_length=4096)]


class AdapterLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Make an adapter ready."""

    version: int = CONTRACT_VERSION
    name: AdapterName
    directory: Annotated[str, Meta(max_length=4096)]


class AdapterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded adapter; `num_bytes` is what it takes in a worker's memory, 0 where that is not known."""

    ref: AdapterRef
    rank: int
    targets: tuple[str, ...]
    num_bytes: int = 0


@runtime_checkable
class Adaptable(Protocol):
    """A worker that computes with LoRA adapters. Only the gateway's operators lead to these calls."""

    async def load_adapter(self, load: AdapterLoad, timeout_s: float) -> AdapterInfo:
        """Check an adapter's files and make it ready. Raises `AdapterError`, and `OverloadedError` without room."""
        ...

    async def unload_adapter(self, ref: AdapterRef, timeout_s: float) -> None:
        """Free its memory, once the requests that use it have ended; harmless for one that is not there."""
        ...


def decode_load(body: bytes) -> AdapterLoad:
    """Read a call to `LOAD_PATH`. Raises `InvalidRequestError` or `ContractVersionError`."""
    try:
        load = msgspec.json.decode(body, type=AdapterLoad)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequestError(f"This loads no adapter: {error}") from error
    check_gateway(load.version, "/version")
    return load


def decode_ref(body: bytes) -> AdapterRef:
    """Read a call to `UNLOAD_PATH`. Raises `InvalidRequestError`."""
    try:
        return msgspec.json.decode(body, type=AdapterRef)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequestError(f"This names no adapter: {error}") from error


def decode_adapter(body: bytes) -> AdapterInfo:
    """Read a worker's answer to `AdapterLoad`. Raises `EngineError`."""
    try:
        return msgspec.json.decode(body, type=AdapterInfo)
    except (msgspec.DecodeError, RecursionError) as error:
        raise EngineError("The worker's answer about an adapter cannot be understood") from error
