"""What a decoder process and its owner say to each other over a socket: small heads, and bytes that lie in no block.

The owner trusts nothing that comes back: heads are validated, sizes bounded, and nothing is unpickled.
"""

import socket
import time
from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from chiasm.media.prepare.medium import Announced
from chiasm.media.video.sampling import SamplingRule
from chiasm.protocol.media import Sha256Hex, SpoolSource

_LENGTH_BYTES = 4
_MAX_HEAD_BYTES = 64 * 1024
_Head = TypeVar("_Head")


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The process has loaded its libraries and set its limits."""


class Job(msgspec.Struct, frozen=True, tag="job"):
    """One medium. Followed by the pickled preparer, then the encoded bytes unless they are in the spool.

    `block` is the number of the lent block that its arrays may lie in.
    """

    announced: Announced
    num_preparer_bytes: int
    num_data_bytes: int
    spooled: SpoolSource | None
    block: Annotated[int, Meta(ge=0)] | None = None


class Look(msgspec.Struct, frozen=True, tag="look"):
    """A medium whose headers are to be read. Followed by the encoded bytes. `rule` says which frames of a video."""

    kind: Literal["image", "video", "audio"]
    num_data_bytes: int
    rule: SamplingRule = SamplingRule()


class NamePixels(msgspec.Struct, frozen=True, tag="name_pixels"):
    """A picture whose pixels are to be named. Followed by the encoded bytes."""

    num_data_bytes: int


class Named(msgspec.Struct, frozen=True, tag="named"):
    """The name of a picture's pixels."""

    identity: Sha256Hex


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    """The process has received the picture whole. Only from here on can the picture be to blame for its end."""


class ArrayHead(msgspec.Struct, frozen=True):
    """One array: at an offset in the lent block, or its bytes follow, after those of the arrays before it."""

    name: Annotated[str, Meta(max_length=64)]
    dtype: Annotated[str, Meta(pattern=r"^(\|[biu]1|<[iu][248]|<f[248])\Z")]
    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=2**40)], ...], Meta(max_length=8)]
    offset: Annotated[int, Meta(ge=0, le=2**40)] | None = None


class Done(msgspec.Struct, frozen=True, tag="done"):
    """A prepared picture. Times are of `time.perf_counter`, which all processes of a Linux machine share."""

    started: float
    decoded: float
    prepared: float
    arrays: Annotated[tuple[ArrayHead, ...], Meta(max_length=64)]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A picture that is refused; an error of the tree."""

    code: str
    message: Annotated[str, Meta(max_length=1000)]
    hint: Annotated[str, Meta(max_length=1000)] | None


class Link:
    """One end of the socket. With a deadline, whatever waits past it raises `TimeoutError`; `EOFError` at the end."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._deadline: float | None = None

    def expire_in(self, timeout_s: float | None) -> None:
        """Set the deadline of all that follows, None for none."""
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def send(self, head: msgspec.Struct, parts: Sequence[bytes | memoryview] = ()) -> None:
        """Send a head and the bytes that belong to it."""
        text = msgspec.msgpack.encode(head)
        assert len(text) <= _MAX_HEAD_BYTES
        for part in (len(text).to_bytes(_LENGTH_BYTES, "big") + text, *parts):
            self._arm()
            self._end.sendall(part)

    def receive(self, kind: type[_Head]) -> _Head:
        """Return the next head. Raises `ValueError` when it is not of this kind."""
        length = int.from_bytes(self.receive_bytes(_LENGTH_BYTES), "big")
        if length > _MAX_HEAD_BYTES:
            raise ValueError(f"a head of {length} bytes")
        return msgspec.msgpack.decode(self.receive_bytes(length), type=kind)  # ValidationError is a ValueError

    def receive_bytes(self, num_bytes: int) -> bytearray:
        """Return that many bytes."""
        data = bytearray(num_bytes)
        self._fill(memoryview(data))
        return data

    def receive_array(self, head: ArrayHead) -> NDArray[np.generic]:
        """Return the next array, received where it stays."""
        array: NDArray[np.generic] = np.empty(head.shape, head.dtype)
        self._fill(bytes_of(array))
        return array

    def close(self) -> None:
        """Close this end; the other one reads the end of the stream."""
        self._end.close()

    def _fill(self, view: memoryview) -> None:
        at = 0
        while at < len(view):
            self._arm()
            received = self._end.recv_into(view[at:])
            if received == 0:
                raise EOFError
            at += received

    def _arm(self) -> None:
        if self._deadline is None:
            self._end.settimeout(None)
            return
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._end.settimeout(left_s)


def bytes_of(array: NDArray[np.generic]) -> memoryview:
    """Return the bytes of a contiguous array, shared with it."""
    return array.reshape(-1).view(np.uint8).data


def num_array_bytes(heads: Sequence[ArrayHead]) -> int:
    """Return the bytes of these arrays."""
    return sum(int(np.prod([1.0, *head.shape])) * np.dtype(head.dtype).itemsize for head in heads)
