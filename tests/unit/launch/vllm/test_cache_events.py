"""Which servers say what their caches evict, and where they are listened to."""

import json
from pathlib import Path

import pytest

from chiasm.errors import InvalidSettingError, MissingExtraError
from chiasm.launch.processes.specs import WorkerSpec
from chiasm.launch.vllm import cache_events
from chiasm.launch.vllm.cache_events import (
    events_flags,
    events_of_listed,
    events_of_started,
    how_to_hear,
    silent_servers,
    wants_events,
)
from chiasm.launch.vllm.crew import vllm_specs
from chiasm.launch.vllm.workers_file import read_workers
from chiasm.routing.vllm.cache_events import EventsAddress
from chiasm.settings import RoutingSettings, VllmSettings

FOLDER = Path("/run/chiasm")


def started(topology="e-p-d", **vllm):
    specs = vllm_specs(RoutingSettings(topology=topology))
    return {spec.name: events_of_started(spec, VllmSettings(**vllm), FOLDER) for spec in specs}


def listed(tmp_path, *fields):
    path = tmp_path / "workers.toml"
    path.write_text("\n".join(['[[workers]]\nurl = "http://a:8000"\nroles = ["prefill", "decode"]', *fields]))
    (worker,) = read_workers(str(path))
    return worker


def test_servers_that_prefill_publish_in_their_folder():
    assert started() == {
        "encode-0": None,
        "prefill-0": EventsAddress("ipc:///run/chiasm/prefill-0.kv.tcp:1", "ipc:///run/chiasm/prefill-0.kvr.tcp:1"),
        "decode-0": None,
    }
    assert not any(started(kv_events="no").values())
    assert started(data_parallel=2) == started(), "of the first engine"
    by_hand = WorkerSpec(name="w", roles=("prefill", "decode"), address="http://127.0.0.1:8000")
    assert events_of_started(by_hand, VllmSettings(), FOLDER) is None


def test_flags_say_where():
    name, value = events_flags(EventsAddress("ipc:///a.kv", "ipc:///a.kvr"))
    config = json.loads(value)
    assert name == "--kv-events-config"
    assert (config["endpoint"], config["replay_endpoint"]) == ("ipc:///a.kv", "ipc:///a.kvr")
    assert config["enable_kv_cache_events"]
    assert events_flags(None) == []


def test_without_the_package_nothing_is_published_unless_it_must_be(monkeypatch):
    monkeypatch.setattr(cache_events, "has_zmq", lambda: False)
    assert not any(started().values())
    assert not wants_events("no")
    with pytest.raises(MissingExtraError, match="pyzmq"):
        wants_events("yes")


def test_servers_that_run_already_are_listened_to_where_the_file_says(tmp_path):
    assert events_of_listed(listed(tmp_path), 0) is None
    worker = listed(tmp_path, "data_parallel = 2", 'kv_events = "tcp://a:5557"', 'kv_replay = "tcp://[::1]:5657"')
    assert events_of_listed(worker, 0) == EventsAddress("tcp://a:5557", "tcp://[::1]:5657")
    assert events_of_listed(worker, 1) == EventsAddress("tcp://a:5558", "tcp://[::1]:5658")
    assert events_of_listed(listed(tmp_path, 'kv_events = "ipc:///run/a.kv"'), 0) == EventsAddress("ipc:///run/a.kv")


@pytest.mark.parametrize(
    "fields",
    [
        ('kv_events = "tcp://*:5557"',),
        ('kv_events = "tcp://a"',),
        ('kv_events = "http://a:1"',),
        ('kv_events = "ipc://relative"',),
        ('kv_replay = "tcp://a:1"',),
        ('kv_events = "ipc:///a"', "data_parallel = 2"),
    ],
)
def test_addresses_that_nobody_can_listen_at_are_refused(tmp_path, fields):
    with pytest.raises(InvalidSettingError):
        listed(tmp_path, *fields)


def test_doctor_can_name_those_that_say_nothing(tmp_path):
    specs = vllm_specs(RoutingSettings(topology="e-p-d"))
    assert silent_servers(VllmSettings(), specs) == []
    assert silent_servers(VllmSettings(kv_events="no"), specs) == ["prefill-0"]
    listed(tmp_path, 'name = "w"')
    attached = VllmSettings(workers_file=str(tmp_path / "workers.toml"))
    assert silent_servers(attached, ()) == ["w"]
    listed(tmp_path, 'name = "w"', 'kv_events = "tcp://a:1"')
    assert silent_servers(attached, ()) == []


def test_what_doctor_says_fits_why_they_are_silent(monkeypatch):
    assert "kv_events into their entries" in how_to_hear(VllmSettings(workers_file="w.toml"))
    assert "vllm.kv_events" in how_to_hear(VllmSettings(kv_events="no"))
    monkeypatch.setattr(cache_events, "has_zmq", lambda: False)
    assert how_to_hear(VllmSettings()) == "pip install 'chiasm[vllm]'"
