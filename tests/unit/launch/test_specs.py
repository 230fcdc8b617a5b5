"""Which processes a topology has, and what a worker started by hand is."""

import os

import pytest

from chiasm.errors import InvalidSettingError
from chiasm.launch.processes.specs import (
    WorkerSpec,
    behind_gateway,
    crowding_of,
    niceness_of,
    settings_of_one,
    spec_by_hand,
    specs_of,
)
from chiasm.settings import EngineSettings, MediaSettings, RoutingSettings, Settings

WHOLE = ("encode", "prefill", "decode")
TOPOLOGIES = [
    (RoutingSettings(topology="agg", workers=2), {"worker-0": WHOLE, "worker-1": WHOLE}),
    (RoutingSettings(topology="auto", workers=1), {"worker-0": WHOLE}),
    (
        RoutingSettings(topology="e-pd", encoders=2),
        {"encode-0": ("encode",), "encode-1": ("encode",), "prefill-0": WHOLE},
    ),
    (
        RoutingSettings(topology="e-pd", local_encode="never"),
        {"encode-0": ("encode",), "prefill-0": ("prefill", "decode")},
    ),
    (
        RoutingSettings(topology="e-p-d", decodes=2),
        {"encode-0": ("encode",), "prefill-0": ("encode", "prefill"), "decode-0": ("decode",), "decode-1": ("decode",)},
    ),
    (RoutingSettings(topology="e-pd", encoders=0, prefills=0), {}),
]


@pytest.mark.parametrize(("routing", "expected"), TOPOLOGIES)
def test_each_topology_has_its_processes(routing, expected):
    assert {spec.name: spec.roles for spec in specs_of(routing)} == expected


def test_processes_of_a_machine_share_its_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert settings_of_one(Settings(), 3).engine.threads == 2
    assert settings_of_one(Settings(), 20).engine.threads == 1
    assert settings_of_one(Settings(engine=EngineSettings(threads=5)), 2).engine.threads == 5


@pytest.mark.parametrize(
    ("threads", "num_cores", "parts", "expected"),
    [
        (2, 2, [1, 1], 1.0),
        (1, 2, [1, 1], 0.0),
        (3, 4, [1, 1], 0.5),
        (64, 2, [1, 1], 1.0),
        (2, 2, [1], 0.0),
        (2, 2, [], 0.0),
        (1, 2, [1, 1, 1, 1], pytest.approx(1 / 3)),
        (1, 2, [1, 3], 1.0),
        (0, 8, [1] * 3, 0.0),
        (0, 2, [1] * 3, pytest.approx(0.25)),
    ],
)
def test_workers_with_more_threads_than_cores_take_them_from_each_other(
    monkeypatch, threads, num_cores, parts, expected
):
    monkeypatch.setattr(os, "cpu_count", lambda: num_cores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(num_cores)))
    found = crowding_of(Settings(engine=EngineSettings(threads=threads)), parts)
    assert found == expected
    longer = sum(parts) * (threads or max(1, num_cores // max(1, len(parts)))) / num_cores
    if 0.0 < found < 1.0:
        assert 1 + found * (len(parts) - 1) == pytest.approx(longer), "all busy take as much longer"


def test_a_worker_by_hand_is_named_after_its_roles_and_registers_in_the_folder(tmp_path):
    folder = tmp_path / "workers"
    spec = spec_by_hand(RoutingSettings(directory=str(folder)), ["decode", "prefill"], None, None)
    assert spec.roles == ("prefill", "decode")
    assert spec.name == f"prefill-decode-{os.getpid()}"
    assert spec.address == f"unix:{folder}/{spec.name}.sock"
    assert folder.stat().st_mode & 0o777 == 0o700
    expected = WorkerSpec(name="e", roles=("encode",), address="http://127.0.0.1:1")
    assert spec_by_hand(RoutingSettings(), ["encode"], "e", "http://127.0.0.1:1") == expected


def test_what_a_worker_by_hand_cannot_be():
    with pytest.raises(InvalidSettingError, match="No such role: paint"):
        spec_by_hand(RoutingSettings(directory="/run/x"), ["paint", "encode"], None, None)
    with pytest.raises(InvalidSettingError, match="no address"):
        spec_by_hand(RoutingSettings(), ["encode"], None, None)


@pytest.mark.parametrize(
    ("worker", "media", "whole", "encoder"), [(0, 0, 0, 0), (0, 4, 0, 4), (5, 0, 5, 5), (5, 3, 5, 8), (12, 15, 12, 19)]
)
def test_media_step_back_from_where_the_worker_is(worker, media, whole, encoder):
    settings = Settings(routing=RoutingSettings(worker_niceness=worker), media=MediaSettings(niceness=media))
    assert niceness_of(WorkerSpec(name="w", roles=WHOLE), settings) == whole
    assert niceness_of(WorkerSpec(name="e", roles=("encode",)), settings) == encoder
    assert behind_gateway(settings).media.niceness == encoder
    assert behind_gateway(settings).routing == settings.routing
