"""A `Transport` over a dictionary, with switches to break it."""

import threading
import time

from chiasm.errors import HandleExpiredError, OverloadedError, TransferError


class SharedTensors:
    """What all `MemoryTransport`s of a test offer, and switches to break it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.offers: dict[str, tuple[bytes, float]] = {}
        self.is_full = False
        self.get_delay_s = 0.0
        self.put_delay_s = 0.0
        self.corrupt = False
        self.num_puts = 0
        self.num_gets = 0
        self.num_drops = 0
        self.num_releases = 0


class MemoryTransport:
    """A `Transport` over a dictionary."""

    kind = "memory"

    def __init__(self, shared: SharedTensors) -> None:
        self._shared = shared
        self._mine: set[str] = set()
        self.is_closed = False

    @property
    def num_offered(self) -> int:
        with self._shared.lock:
            now_s = time.monotonic()
            return sum(key in self._mine and ends_s > now_s for key, (_, ends_s) in self._shared.offers.items())

    @property
    def offered_bytes(self) -> int:
        with self._shared.lock:
            return sum(len(data) for key, (data, _) in self._shared.offers.items() if key in self._mine)

    def put(self, key, data, *, ttl_s):
        self._shared.num_puts += 1
        time.sleep(self._shared.put_delay_s)
        if self._shared.is_full:
            raise OverloadedError("told to be full")
        with self._shared.lock:
            self._shared.offers[key] = (bytes(data), time.monotonic() + ttl_s)
            self._mine.add(key)
        return f"at {key}"

    def get(self, address, num_bytes, *, timeout_s):
        self._shared.num_gets += 1
        time.sleep(min(self._shared.get_delay_s, timeout_s))
        if self._shared.get_delay_s > timeout_s:
            raise TransferError("too late")
        with self._shared.lock:
            data, ends_s = self._shared.offers.get(address.removeprefix("at "), (b"", 0.0))
        if ends_s < time.monotonic():
            raise HandleExpiredError("not offered any more")
        if len(data) != num_bytes:
            raise TransferError("not whole")
        return memoryview(bytes(len(data)) if self._shared.corrupt else data)

    def release(self, address, *, timeout_s):
        with self._shared.lock:
            self._shared.offers.pop(address.removeprefix("at "), None)
            self._shared.num_releases += 1

    def drop(self, key):
        with self._shared.lock:
            if key not in self._mine:
                return False
            self._shared.num_drops += 1
            self._mine.discard(key)
            return self._shared.offers.pop(key, None) is not None

    def close(self):
        for key in [*self._mine]:
            self.drop(key)
        self.is_closed = True
