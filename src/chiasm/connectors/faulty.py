"""A transport that fails on purpose, to see what recovers: only `chiasm faults` and tests put it in."""

import time
from collections import Counter
from collections.abc import Sequence
from random import Random
from threading import Lock
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from chiasm.connectors.base import Buffer, Transport
from chiasm.errors import OverloadedError, TransferError

PutFault = Literal["full", "drop", "duplicate"]
GetFault = Literal["delay", "truncate", "corrupt"]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that goes wrong, and for which share of the calls.

    Of `put`: full (refused as over quota), drop (an address is returned and the tensor is gone), duplicate (offered
    twice). Of `get`: delay (by `delay_s`, which may use up the caller's time), truncate (the last byte is missing),
    corrupt (one bit is wrong).
    """

    kind: PutFault | GetFault
    share: Annotated[float, Meta(ge=0, le=1)] = 1.0
    delay_s: Annotated[float, Meta(ge=0)] = 0.0


class FaultyTransport:
    """A `Transport` around another. Of a call's faults the first one drawn happens, alone; same seed, same draws.

    `num_injected` counts them by kind.
    """

    def __init__(self, inner: Transport, faults: Sequence[Fault], seed: int = 0) -> None:
        self._inner = inner
        self._put_faults = [fault for fault in faults if fault.kind in ("full", "drop", "duplicate")]
        self._get_faults = [fault for fault in faults if fault.kind in ("delay", "truncate", "corrupt")]
        self._random = Random(seed)  # noqa: S311 - not a secret
        self._lock = Lock()
        self.num_injected: Counter[str] = Counter()

    @property
    def kind(self) -> str:
        """That of the transport inside."""
        return self._inner.kind

    @property
    def num_offered(self) -> int:
        """That of the transport inside."""
        return self._inner.num_offered

    @property
    def offered_bytes(self) -> int:
        """See `Transport.offered_bytes`."""
        return self._inner.offered_bytes

    def put(self, key: str, data: Buffer, *, ttl_s: float) -> str:
        """See `Transport.put`."""
        fault = self._draw(self._put_faults)
        if fault is not None and fault.kind == "full":
            raise OverloadedError("Injected fault: the quota is used up")
        address = self._inner.put(key, data, ttl_s=ttl_s)
        if fault is not None and fault.kind == "duplicate":
            return self._inner.put(key, data, ttl_s=ttl_s)
        if fault is not None:
            self._inner.drop(key)
        return address

    def get(self, address: str, num_bytes: int, *, timeout_s: float) -> Buffer:
        """See `Transport.get`."""
        fault = self._draw(self._get_faults)
        if fault is not None and fault.kind == "delay":
            time.sleep(min(fault.delay_s, timeout_s))
            if fault.delay_s >= timeout_s:
                raise TransferError(f"Injected fault: the tensor did not arrive within {timeout_s:g} s")
            return self._inner.get(address, num_bytes, timeout_s=timeout_s - fault.delay_s)
        data = self._inner.get(address, num_bytes, timeout_s=timeout_s)
        if fault is not None and fault.kind == "truncate":
            return memoryview(data)[:-1]
        return data if fault is None else self._corrupted(data)

    def release(self, address: str, *, timeout_s: float) -> None:
        """See `Transport.release`."""
        self._inner.release(address, timeout_s=timeout_s)

    def drop(self, key: str) -> bool:
        """See `Transport.drop`."""
        return self._inner.drop(key)

    def close(self) -> None:
        """See `Transport.close`."""
        self._inner.close()

    def _draw(self, faults: Sequence[Fault]) -> Fault | None:
        with self._lock:
            for fault in faults:
                if self._random.random() < fault.share:
                    self.num_injected[fault.kind] += 1
                    return fault
        return None

    def _corrupted(self, data: Buffer) -> bytes:
        changed = bytearray(data)
        with self._lock:
            at = self._random.randrange(8 * len(changed))
        changed[at // 8] ^= 1 << at % 8
        return bytes(changed)
