"""Slots' memory: whose pages are there before the first request."""

import resource

import pytest
import torch

from chiasm.engines.embedded import kv
from chiasm.engines.embedded.kv import SlotKV

SLOT_BYTES = 2**20


def slots(num_slots: int) -> SlotKV:
    """Of one layer, with `SLOT_BYTES` each."""
    return SlotKV(num_layers=1, num_slots=num_slots, num_kv_heads=2, max_tokens=1024, head_dim=64, dtype=torch.float32)


def faults(cache: SlotKV, slot: int) -> int:
    """Pages that the system had to provide while a slot was filled."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    cache.data[:, slot] = 1.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_the_first_write_to_a_committed_slot_waits_for_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv, "COMMITTED_BYTES", 4 * SLOT_BYTES)
    small_pages = SLOT_BYTES // resource.getpagesize()
    cache = slots(64)
    faults(cache, 0)  # the code that fills has pages too
    assert faults(cache, 3) < small_pages // 8
    assert sum(faults(cache, slot) for slot in range(32, 64)) > 0


def test_slots_hold_zeros_and_more_committed_bytes_than_slots_are_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv, "COMMITTED_BYTES", 100 * SLOT_BYTES)
    cache = slots(2)
    assert cache.bytes_per_token * cache.max_tokens == SLOT_BYTES
    assert not cache.data.any()
