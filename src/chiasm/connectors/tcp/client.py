"""The consumer's end: connections are kept for the next tensor, and every step counts towards one deadline."""

import socket
import struct
import time
from collections import deque
from contextlib import suppress
from threading import Lock

import numpy as np

from chiasm.connectors.base import Buffer
from chiasm.connectors.tcp import wire
from chiasm.connectors.tcp.server import IDLE_S
from chiasm.errors import HandleExpiredError, TransferError

MAX_IDLE_CONNECTIONS = 32
_MAX_AGE_S = IDLE_S / 2


class Client:
    """Thread-safe. At most `MAX_IDLE_CONNECTIONS` wait for their next use, over all peers."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_closed = False
        self._idle: deque[tuple[tuple[str, int], float, socket.socket]] = deque()

    @property
    def num_idle(self) -> int:
        """Connections that wait for their next use."""
        return len(self._idle)

    def get(self, text: str, num_bytes: int, timeout_s: float) -> Buffer:
        """See `Transport.get`."""
        return self._asked(wire.TAKE, text, num_bytes, timeout_s)

    def release(self, text: str, timeout_s: float) -> None:
        """See `Transport.release`."""
        with suppress(HandleExpiredError):  # and all that it offered
            self._asked(wire.RELEASE, text, 0, timeout_s)

    def _asked(self, what: int, text: str, num_bytes: int, timeout_s: float) -> Buffer:
        address, deadline = wire.parse_address(text), wire.Deadline(timeout_s)
        try:
            request = wire.REQUEST.pack(wire.MAGIC, what, address.token, num_bytes)
            return self._sent(address, request, num_bytes, deadline)
        except ConnectionRefusedError:
            raise HandleExpiredError("The process that offered the tensor is gone") from None
        except TimeoutError:
            raise TransferError(f"The tensor did not arrive within {timeout_s:g} s") from None
        except EOFError:
            raise TransferError("The connection ended before the tensor was there") from None
        except OSError as error:
            raise TransferError(f"The connection failed: {error.strerror}") from error
        except (ValueError, struct.error):
            raise TransferError("The other end is not a transport of this version, or the size is absurd") from None

    def close(self) -> None:
        """Close what waits; what is in use is closed after that use."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, deque()
        for _, _, end in idle:
            end.close()

    def _sent(self, address: wire.Address, request: bytes, num_bytes: int, deadline: wire.Deadline) -> Buffer:
        kept = self._take(address[:2])
        if kept is not None:
            try:
                return self._exchange(kept, address, request, num_bytes, deadline)
            except (ConnectionError, EOFError):
                deadline.left_s()  # the other end had given it up, or has gone: a new connection will show which
        fresh = socket.create_connection(address[:2], deadline.left_s())
        fresh.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._exchange(fresh, address, request, num_bytes, deadline)

    def _exchange(
        self, end: socket.socket, address: wire.Address, request: bytes, num_bytes: int, deadline: wire.Deadline
    ) -> Buffer:
        try:
            wire.send_all(end, request, deadline)
            status, offered_bytes = wire.receive(end, wire.REPLY, deadline)
            data = np.empty(num_bytes if status == wire.OK else 0, np.uint8)
            wire.receive_into(end, data.data, deadline)
        except BaseException:
            end.close()
            raise
        self._keep(address[:2], end)
        if status == wire.GONE:
            raise HandleExpiredError("The tensor is no longer offered")
        if status != wire.OK:
            raise TransferError(f"{offered_bytes!r} bytes are offered, {num_bytes} were announced")
        return data.data.toreadonly()

    def _take(self, peer: tuple[str, int]) -> socket.socket | None:
        oldest = time.monotonic() - _MAX_AGE_S
        with self._lock:
            while self._idle and self._idle[0][1] < oldest:
                self._idle.popleft()[2].close()
            for entry in reversed(self._idle):
                if entry[0] == peer:
                    self._idle.remove(entry)
                    return entry[2]
        return None

    def _keep(self, peer: tuple[str, int], end: socket.socket) -> None:
        with self._lock:
            self._idle.append((peer, time.monotonic(), end))
            while len(self._idle) > (0 if self._is_closed else MAX_IDLE_CONNECTIONS):
                self._idle.popleft()[2].close()
