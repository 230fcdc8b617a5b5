import time

import pytest

from chiasm.connectors.faulty import Fault, FaultyTransport
from chiasm.errors import HandleExpiredError, OverloadedError, TransferError


class Memory:
    """A transport in one process, which counts calls."""

    kind = "memory"

    def __init__(self):
        self.tensors, self.num_puts, self.is_closed = {}, 0, False

    @property
    def num_offered(self):
        return len(self.tensors)

    def put(self, key, data, *, ttl_s):
        self.num_puts += 1
        self.tensors[key] = bytes(data)
        return key

    def get(self, address, num_bytes, *, timeout_s):
        if address not in self.tensors:
            raise HandleExpiredError("gone")
        return self.tensors[address]

    def drop(self, key):
        self.tensors.pop(key, None)

    def close(self):
        self.is_closed = True


def faulty(*faults, seed=0):
    return FaultyTransport(Memory(), [Fault(**fault) for fault in faults], seed)


def test_without_faults_it_is_the_transport_inside():
    transport = faulty()
    assert transport.get(transport.put("a", b"abc", ttl_s=1), 3, timeout_s=1) == b"abc"
    assert (transport.kind, transport.num_offered) == ("memory", 1)
    transport.drop("a")
    assert transport.num_offered == 0
    transport.close()
    assert transport._inner.is_closed
    assert not transport.num_injected


def test_full_is_refused_and_not_stored():
    transport = faulty({"kind": "full"})
    with pytest.raises(OverloadedError):
        transport.put("a", b"abc", ttl_s=1)
    assert transport._inner.num_puts == 0


def test_a_dropped_tensor_has_an_address_that_leads_nowhere():
    transport = faulty({"kind": "drop"})
    with pytest.raises(HandleExpiredError):
        transport.get(transport.put("a", b"abc", ttl_s=1), 3, timeout_s=1)


def test_a_duplicate_is_put_twice():
    transport = faulty({"kind": "duplicate"})
    assert transport.get(transport.put("a", b"abc", ttl_s=1), 3, timeout_s=1) == b"abc"
    assert transport._inner.num_puts == 2


def test_truncated_and_corrupted_bytes_differ_in_one_way():
    transport = faulty({"kind": "truncate"})
    assert bytes(transport.get(transport.put("a", b"abc", ttl_s=1), 3, timeout_s=1)) == b"ab"
    transport = faulty({"kind": "corrupt"})
    data = transport.get(transport.put("a", b"abc", ttl_s=1), 3, timeout_s=1)
    assert sum((x ^ y).bit_count() for x, y in zip(data, b"abc", strict=True)) == 1


def test_a_delay_uses_up_the_callers_time_and_no_more(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    transport = faulty({"kind": "delay", "delay_s": 3.0})
    address = transport.put("a", b"abc", ttl_s=1)
    assert transport.get(address, 3, timeout_s=5) == b"abc"
    with pytest.raises(TransferError, match="did not arrive within 2 s"):
        transport.get(address, 3, timeout_s=2)
    assert slept == [3.0, 2.0]


def test_shares_are_kept_and_the_same_seed_draws_the_same():
    counts = []
    for _ in range(2):
        transport = faulty({"kind": "truncate", "share": 0.1}, {"kind": "corrupt", "share": 0.1}, seed=7)
        address = transport.put("a", b"abc", ttl_s=1)
        for _ in range(1000):
            transport.get(address, 3, timeout_s=1)
        counts.append(dict(transport.num_injected))
    assert counts[0] == counts[1]
    assert all(60 < count < 140 for count in counts[0].values())
    assert set(counts[0]) == {"truncate", "corrupt"}
