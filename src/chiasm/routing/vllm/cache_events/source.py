"""Events over ZeroMQ: subscribed to where vLLM publishes them, and asked for again where some were missed."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from chiasm.errors import EngineError, InvalidSettingError, MissingExtraError

if TYPE_CHECKING:
    from types import ModuleType

    from zmq.asyncio import Context, Socket

_MAX_WAITING = 16
_MAX_MESSAGE_BYTES = 8 * 2**20
"""Of one step: hundreds of kilobytes are usual. What waits here, at most both together, fills the server's own queue
next, whose end shows as a gap; a larger message ends the connection, and is a gap as well."""
_REPLAY_TIMEOUT_S = 5.0
_REPLAYS_TIMEOUT_S = 60.0
_SILENCE_S = 0.25
"""After which an answer that has begun is over: its end mark may have been dropped with the rest."""
_HEARTBEAT_S = 10.0
"""A host that went away without a word is noticed after three of them, and dialled again."""
_NUM_BYTES = 8


class EventsAddress(msgspec.Struct, frozen=True):
    """Where a server publishes, and where it answers for what was missed; empty: it does not."""

    publishes: str
    replays: str = ""

    def of_rank(self, rank: int) -> "EventsAddress":
        """Where a data-parallel engine publishes: vLLM adds its rank to the port."""
        return EventsAddress(_moved(self.publishes, rank), _moved(self.replays, rank))


class ZmqSource:
    """Implements `Source`. Lives on one event loop.

    What waits here is bounded; ZeroMQ drops the rest, and the numbers show it.
    """

    def __init__(self, address: EventsAddress) -> None:
        """Subscribe; nobody need be there yet.

        Raises:
            MissingExtraError: pyzmq is not installed.
            InvalidSettingError: The address is none.
        """
        self._zmq, self._context = _imported()
        self._address = address
        try:
            self._subscribed = self._connected(self._zmq.SUB, address.publishes)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._subscribed.setsockopt(self._zmq.SUBSCRIBE, b"")

    async def received(self) -> tuple[int, bytes]:
        """See `Source`."""
        try:
            return _numbered(await self._subscribed.recv_multipart())
        except self._zmq.ZMQError as error:
            raise EngineError(f"ZeroMQ says: {error.strerror}") from error

    async def replayed(self, first: int, until: int) -> AsyncGenerator[tuple[int, bytes], None]:
        """See `Source`.

        vLLM sends all that it has from a number on at once, and drops what its socket has no room for, which are
        those after about a thousand, and the end mark: they are asked for again.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _REPLAYS_TIMEOUT_S
        while first < until and self._address.replays:
            begin = first
            async with aclosing(self._answer(first, until)) as answer:
                async for payload in answer:
                    yield first, payload
                    first += 1
                    if loop.time() > deadline_s:
                        return
            if first == begin:
                return

    async def _answer(self, first: int, until: int) -> AsyncGenerator[bytes, None]:
        """Batches from a number on, until one is not there. Its socket ends with it, and what comes there too late."""
        asking = self._connected(self._zmq.DEALER, self._address.replays)
        patience_s = _REPLAY_TIMEOUT_S
        try:
            await asking.send_multipart([b"", first.to_bytes(_NUM_BYTES, "big")])
            while first < until:
                async with asyncio.timeout(patience_s):
                    number, payload = _numbered((await asking.recv_multipart())[1:])
                if number != first:  # a gap, or the mark at the end
                    return
                yield payload
                first, patience_s = first + 1, _SILENCE_S
        except (TimeoutError, self._zmq.ZMQError) as error:
            if patience_s == _REPLAY_TIMEOUT_S:
                raise EngineError("The server does not answer for the events that were missed") from error
        finally:
            asking.close(linger=0)

    def close(self) -> None:
        """See `Source`."""
        self._context.destroy(linger=0)

    def _connected(self, kind: int, address: str) -> "Socket":
        try:
            socket = self._context.socket(kind)
        except self._zmq.ZMQError as error:
            raise EngineError(f"ZeroMQ has no socket for vLLM's cache events: {error.strerror}") from error
        socket.setsockopt(self._zmq.RCVHWM, _MAX_WAITING)
        socket.setsockopt(self._zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
        socket.setsockopt(self._zmq.HEARTBEAT_IVL, int(_HEARTBEAT_S * 1000))
        socket.setsockopt(self._zmq.HEARTBEAT_TIMEOUT, int(3 * _HEARTBEAT_S * 1000))
        socket.setsockopt(self._zmq.IPV6, address.startswith("tcp://["))
        try:
            socket.connect(address)
        except self._zmq.ZMQError as error:
            socket.close(linger=0)
            raise InvalidSettingError(
                f"Nobody can be listened to at '{address}': {error.strerror}",
                hint='Write kv_events = "tcp://host:port"',
            ) from error
        return socket


def has_zmq() -> bool:
    """Whether pyzmq is installed."""
    return find_spec("zmq") is not None


def _imported() -> "tuple[ModuleType, Context]":
    try:
        import zmq  # noqa: PLC0415 - an extra
        from zmq.asyncio import Context  # noqa: PLC0415
    except ImportError:
        raise MissingExtraError("vLLM's cache events need pyzmq", hint="pip install 'chiasm[vllm]'") from None
    return zmq, Context(io_threads=1)


def _numbered(frames: list[bytes]) -> tuple[int, bytes]:
    """Number and payload of a message; its first frame is a topic."""
    if len(frames) != 3 or len(frames[1]) != _NUM_BYTES:
        raise EngineError("A message is none of vLLM's cache events")
    return int.from_bytes(frames[1], "big"), frames[2]


def _moved(address: str, rank: int) -> str:
    if not rank or not address:
        return address
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + rank}"
