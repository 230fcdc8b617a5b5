"""What the two ends say: an address, one request, one reply; every wait ends at a deadline."""

import ipaddress
import re
import socket
import struct
import time
from typing import NamedTuple

from chiasm.errors import TransferError

MAGIC = b"chiasmT2"
TOKEN_BYTES = 16
REQUEST = struct.Struct(f"<8sB{TOKEN_BYTES}sQ")  # magic, what is asked, token, bytes that the consumer expects
TAKE, RELEASE = 0, 1
REPLY = struct.Struct("<8sBQ")  # magic, status, bytes that follow when the status is OK
OK, GONE, OTHER_LENGTH = 0, 1, 2
_ADDRESS = re.compile(rf"(?:([0-9.]{{7,15}})|\[([0-9a-f:.]{{2,45}})\]):([0-9]{{1,5}})/([0-9a-f]{{{2 * TOKEN_BYTES}}})")


class Address(NamedTuple):
    """Where a tensor is offered. `host` is an IP address, so that no name is looked up; `token` cannot be guessed."""

    host: str
    port: int
    token: bytes

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}/{self.token.hex()}"


def parse_address(text: str) -> Address:
    """Raises `TransferError` on anything that `str(Address)` does not write."""
    match = _ADDRESS.fullmatch(text)
    try:
        if match is None or not 0 < int(match[3]) < 2**16:
            raise ValueError
        return Address(str(ipaddress.ip_address(match[1] or match[2])), int(match[3]), bytes.fromhex(match[4]))
    except ValueError:
        raise TransferError("The address is not one of TCP", hint="Use one transfer.connector everywhere") from None


class Deadline:
    """A point in time at which all that waits for it raises `TimeoutError`."""

    def __init__(self, timeout_s: float) -> None:
        self._at = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Seconds until then; `TimeoutError` when there are none."""
        left_s = self._at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


def send_all(end: socket.socket, data: bytes | memoryview, deadline: Deadline) -> None:
    """Send everything. Raises `TimeoutError` or `OSError`."""
    view = memoryview(data)
    while view.nbytes:
        end.settimeout(deadline.left_s())
        view = view[end.send(view) :]


def receive_into(end: socket.socket, view: memoryview, deadline: Deadline) -> None:
    """Fill the buffer. Raises `TimeoutError`, `OSError`, or `EOFError` when the other end closed before."""
    while view.nbytes:
        end.settimeout(deadline.left_s())
        num_bytes = end.recv_into(view)
        if not num_bytes:
            raise EOFError
        view = view[num_bytes:]


def receive(end: socket.socket, layout: struct.Struct, deadline: Deadline) -> tuple[bytes | int, ...]:
    """Return the fields of one head. Raises as `receive_into`, and `ValueError` when it is not one of ours."""
    head = bytearray(layout.size)
    receive_into(end, memoryview(head), deadline)
    magic, *fields = layout.unpack(head)
    if magic != MAGIC:
        raise ValueError("not a peer of this version")
    return tuple(fields)
