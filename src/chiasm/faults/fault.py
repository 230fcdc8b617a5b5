"""A fault: what happens to one request, the target, at the places where it passes."""

import asyncio
from collections.abc import Callable
from threading import Lock
from typing import Literal, Protocol

from chiasm.connectors.faulty import Fault as Tampering
from chiasm.errors import EngineError
from chiasm.protocol.generation import GenerateEvent, GenerateRequest
from chiasm.protocol.worker import EncodeResponse

Tensor = Literal["embedding", "kv"]
Direction = Literal["put", "get"]
_HOLD_TIMEOUT_S = 60.0
_PUTS = ("full", "drop", "duplicate")


class Fault:
    """Does nothing by itself. One object serves one trial, and is asked about the target only.

    Attributes:
        left: Set when the target's client is to leave.
        gone: Set when it has left.
        num_met: How often the fault has happened.
    """

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.gone = asyncio.Event()
        self.num_met = 0

    async def download_called(self) -> None:
        """The ingest fetches the target's picture from a server that is slow."""

    async def encode_called(self, worker: str) -> None:
        """A worker is about to be asked for the target's embedding."""

    async def encoded(self, worker: str, response: EncodeResponse) -> EncodeResponse:
        """A worker has encoded; the router gets what this returns."""
        return response

    async def supply_called(self, worker: str) -> None:
        """A worker is about to get embeddings that a prompt of the target waits for."""

    async def generate_called(self, worker: str, request: GenerateRequest) -> None:
        """A worker is about to be asked for prefill, decode or both."""

    async def event(self, worker: str, request: GenerateRequest, event: GenerateEvent) -> GenerateEvent:
        """A worker's answer goes on; the router gets what this returns."""
        return event

    def tampering(self, direction: Direction, tensor: Tensor) -> Tampering | None:
        """What a transport is to do with a tensor of the target. Called on any thread."""
        return None

    async def hold(self) -> None:
        """Keep a call until it is cancelled. Raises `EngineError` when nobody does that."""
        await asyncio.sleep(_HOLD_TIMEOUT_S)
        raise EngineError("A call that was held was not cancelled")


class TransportFault(Fault):
    """Tampers with the first `times` tensors of a kind."""

    def __init__(self, tampering: Tampering, tensor: Tensor = "embedding", times: int = 1) -> None:
        super().__init__()
        self._tampering = tampering
        self._tensor = tensor
        self._direction: Direction = "put" if tampering.kind in _PUTS else "get"
        self._num_left = times
        self._lock = Lock()

    def tampering(self, direction: Direction, tensor: Tensor) -> Tampering | None:
        """See `Fault`."""
        with self._lock:
            if (direction, tensor) != (self._direction, self._tensor) or not self._num_left:
                return None
            self._num_left -= 1
            self.num_met += 1
        return self._tampering


class ResponseFault(Fault):
    """Changes the first `times` answers of encoders."""

    def __init__(self, change: Callable[[EncodeResponse], EncodeResponse], times: int = 1) -> None:
        super().__init__()
        self._change = change
        self._times = times

    async def encoded(self, worker: str, response: EncodeResponse) -> EncodeResponse:
        """See `Fault`."""
        if self.num_met >= self._times:
            return response
        self.num_met += 1
        return self._change(response)


class Processes(Protocol):
    """The worker processes of a fleet, for faults that end them."""

    def pause(self, worker: str) -> None:
        """Stop a worker where it is, without a word."""
        ...

    def kill(self, worker: str) -> None:
        """End a worker, without a word."""
        ...
