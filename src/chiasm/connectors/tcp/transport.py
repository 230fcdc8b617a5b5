"""A `Transport` over TCP."""

import secrets
import time
from threading import Lock
from typing import NamedTuple

from chiasm.connectors.base import Buffer
from chiasm.connectors.offers import OfferBook, is_equal
from chiasm.connectors.tcp.client import Client
from chiasm.connectors.tcp.server import Server
from chiasm.connectors.tcp.wire import TOKEN_BYTES, Address
from chiasm.errors import ShuttingDownError, TransferError


class _Tensor(NamedTuple):
    key: str
    token: bytes
    data: bytes


class TcpTransport:
    """Listens on a free port of `host`. Each offer has a random token, without which nobody can read or guess it."""

    def __init__(self, *, host: str, max_bytes: int, timeout_s: float) -> None:
        self._lock = Lock()
        self._is_closed = False
        self._tokens: dict[bytes, _Tensor] = {}
        self._book: OfferBook[_Tensor] = OfferBook(max_bytes, self, time.monotonic)
        self._client = Client()
        self._server = Server(host, timeout_s, self._find, self._release)

    @property
    def kind(self) -> str:
        """See `Transport.kind`."""
        return "tcp"

    @property
    def num_offered(self) -> int:
        """See `Transport.num_offered`."""
        with self._lock:
            return len(self._book)

    @property
    def offered_bytes(self) -> int:
        """See `Transport.offered_bytes`."""
        return self._book.used_bytes

    def put(self, key: str, data: Buffer, *, ttl_s: float) -> str:
        """See `Transport.put`. Bytes that differ from those offered under the key replace them."""
        with self._lock:
            if self._is_closed:
                raise ShuttingDownError("The transport is closed")
            return str(Address(self._server.host, self._server.port, self._book.put(key, data, ttl_s).token))

    def get(self, address: str, num_bytes: int, *, timeout_s: float) -> Buffer:
        """See `Transport.get`."""
        if self._is_closed:
            raise TransferError("The transport is closed")
        return self._client.get(address, num_bytes, timeout_s)

    def release(self, address: str, *, timeout_s: float) -> None:
        """See `Transport.release`."""
        if self._is_closed:
            raise TransferError("The transport is closed")
        self._client.release(address, timeout_s)

    def drop(self, key: str) -> bool:
        """See `Transport.drop`."""
        with self._lock:
            return self._book.remove(key)

    def close(self) -> None:
        """See `Transport.close`."""
        with self._lock:
            self._is_closed = True
            self._book.clear()
        self._client.close()
        self._server.close()

    def place(self, key: str, data: memoryview, expires_at: float) -> _Tensor:
        """See `Shelf.place`."""
        whole = data.obj
        kept = whole if isinstance(whole, bytes) and len(whole) == data.nbytes else bytes(data)
        tensor = _Tensor(key, secrets.token_bytes(TOKEN_BYTES), kept)
        self._tokens[tensor.token] = tensor
        return tensor

    def holds(self, value: _Tensor, data: memoryview) -> bool:
        """See `Shelf.holds`."""
        return is_equal(value.data, data)

    def renew(self, value: _Tensor, data: memoryview, expires_at: float) -> None:
        """See `Shelf.renew`: the book alone knows the expiry."""

    def is_released(self, value: _Tensor) -> bool:
        """See `Shelf.is_released`: what is released is retired at once."""
        return False

    def retire(self, value: _Tensor) -> None:
        """See `Shelf.retire`."""
        del self._tokens[value.token]

    def _find(self, token: bytes) -> bytes | None:
        with self._lock:
            tensor = self._tokens.get(token)
            return tensor.data if tensor is not None and self._book.find(tensor.key) is not None else None

    def _release(self, token: bytes) -> None:
        with self._lock:
            tensor = self._tokens.get(token)
            if tensor is not None:
                self._book.remove(tensor.key)
