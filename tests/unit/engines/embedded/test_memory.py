"""Weights are counted once, exhaustion is told from other failures, and a device's figures keep their names."""

import pytest
import torch

from chiasm.engines.embedded.memory import device_memory, is_out_of_memory, module_bytes


def test_weights_that_are_shared_or_plain_attributes_count_once():
    module = torch.nn.Sequential(torch.nn.Linear(10, 20, bias=False), torch.nn.Linear(20, 10, bias=False))
    assert module_bytes(module) == 4 * 400
    module[1].weight = module[0].weight
    assert module_bytes(module) == 4 * 200
    module[0].kernel = torch.zeros(50, dtype=torch.bfloat16)
    module[0].view = module[0].kernel[:10]
    assert module_bytes(module) == 4 * 200 + 100


def test_real_exhaustion_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert is_out_of_memory(caught.value)
    with pytest.raises(MemoryError) as caught:
        bytearray(1 << 60)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))


@pytest.mark.parametrize("error", [RuntimeError("shapes do not fit"), ValueError("x"), KeyError("memory")])
def test_other_failures_are_not_exhaustion(error):
    assert not is_out_of_memory(error)


def test_no_device_in_use_is_none():
    assert device_memory() == ()


def test_a_devices_figures(monkeypatch):
    stats = {
        "allocated_bytes.all.current": 10,
        "reserved_bytes.all.current": 20,
        "allocated_bytes.all.peak": 15,
        "reserved_bytes.all.peak": 25,
        "num_ooms": 1,
    }
    for name, value in {
        "is_available": True,
        "is_initialized": True,
        "device_count": 2,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda number: 20 * (number == 1))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: (70, 100))
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda number: stats)
    (found,) = device_memory()
    assert (found.device, found.allocated_bytes, found.peak_reserved_bytes) == ("cuda:1", 10, 25)
    assert (found.free_bytes, found.total_bytes, found.num_out_of_memory) == (70, 100, 1)
