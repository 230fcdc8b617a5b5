"""Figures of a process are those of the system; memory becomes metrics, each process and part apart."""

import mmap

import psutil
import pytest

from chiasm.observability import memory
from chiasm.observability.memory import (
    AllocatorMemory,
    MemoryPart,
    ProcessMemory,
    WorkerMemory,
    allocator_memory,
    memory_limit_bytes,
    process_memory,
)
from chiasm.observability.metrics import GatewayMetrics

_BLOCK_BYTES = 64 * 2**20


def test_figures_are_those_the_system_gives_others():
    found, theirs = process_memory(), psutil.Process().memory_full_info()
    assert found.rss_bytes == pytest.approx(theirs.rss, rel=0.05)
    assert found.pss_bytes == pytest.approx(theirs.pss, rel=0.05)
    assert found.pss_bytes <= found.rss_bytes <= found.peak_rss_bytes
    assert 0 < found.shared_bytes < found.rss_bytes


def test_written_pages_are_resident_and_the_peak_remembers_them():
    before = process_memory()
    block = mmap.mmap(-1, _BLOCK_BYTES)
    assert process_memory().rss_bytes - before.rss_bytes < _BLOCK_BYTES / 4  # not written yet
    block.write(b"x" * _BLOCK_BYTES)
    during = process_memory()
    block.close()
    after = process_memory()
    assert during.rss_bytes - before.rss_bytes > 0.9 * _BLOCK_BYTES
    assert during.rss_bytes - after.rss_bytes > 0.9 * _BLOCK_BYTES
    assert after.peak_rss_bytes >= during.rss_bytes - 2**20


def test_the_allocator_knows_what_it_handed_out():
    before = allocator_memory()
    block = bytearray(_BLOCK_BYTES)
    during = allocator_memory()
    assert during.used_bytes - before.used_bytes == pytest.approx(len(block), rel=0.1)
    assert during.taken_bytes >= during.used_bytes


def test_no_proc_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_PROC", tmp_path)
    assert process_memory() is None


def test_a_container_may_have_less_than_the_machine(tmp_path, monkeypatch):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "_CGROUP_LIMIT", limit)
    assert memory_limit_bytes() == psutil.virtual_memory().total
    for written, found in (("max", psutil.virtual_memory().total), (str(2**60), psutil.virtual_memory().total)):
        limit.write_text(f"{written}\n")
        assert memory_limit_bytes() == found
    limit.write_text(f"{2**28}\n")
    assert memory_limit_bytes() == 2**28


def test_kills_for_want_of_memory_are_read_from_the_control_group(tmp_path, monkeypatch):
    events = tmp_path / "memory.events"
    monkeypatch.setattr(memory, "_CGROUP_EVENTS", events)
    assert process_memory().num_oom_kills is None
    events.write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert process_memory().num_oom_kills == 2


def test_memory_becomes_metrics_by_process_and_part():
    metrics = GatewayMetrics(dict, dict, dict)
    process = ProcessMemory(
        rss_bytes=300, pss_bytes=None, shared_bytes=20, peak_rss_bytes=400, swap_bytes=0, num_oom_kills=1
    )
    metrics.memory = (
        WorkerMemory(
            worker="a",
            process=process,
            allocator=AllocatorMemory(taken_bytes=90, used_bytes=60, kept_bytes=30),
            parts=(
                MemoryPart(name="tower", kind="weights", used_bytes=10),
                MemoryPart(name="kv_slots", kind="requests", used_bytes=5, reserved_bytes=50, peak_bytes=7),
            ),
            kv_bytes_per_token=3,
        ),
        WorkerMemory(worker="b", error="deadline_exceeded"),
    )

    def value(name, **labels):
        return metrics.registry.get_sample_value(name, labels)

    assert value("chiasm_memory_used_bytes", worker="a", part="tower", kind="weights") == 10
    assert value("chiasm_memory_reserved_bytes", worker="a", part="kv_slots", kind="requests") == 50
    assert value("chiasm_memory_reserved_bytes", worker="a", part="tower", kind="weights") is None
    assert value("chiasm_process_rss_bytes", worker="a") == 300
    assert value("chiasm_process_pss_bytes", worker="a") is None
    assert value("chiasm_allocator_kept_bytes", worker="a") == 30
    assert value("chiasm_oom_kills_total", worker="a") == 1
    assert value("chiasm_process_rss_bytes", worker="b") is None


def test_parts_of_a_kind_add_up():
    parts = [MemoryPart(name=str(size), kind=kind, used_bytes=size) for size, kind in ((1, "cache"), (2, "shared"))]
    assert WorkerMemory(worker="a", parts=(*parts, parts[0])).used_bytes("cache") == 2
