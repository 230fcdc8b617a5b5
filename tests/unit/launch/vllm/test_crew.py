"""What is looked at before anything starts."""

import os
from importlib.metadata import distributions
from pathlib import Path
from pkgutil import resolve_name

import pytest

import chiasm
from chiasm.engines.vllm.ec import engine_folder
from chiasm.engines.vllm.plugin import register
from chiasm.errors import EngineStartError, InvalidSettingError, MissingExtraError
from chiasm.launch.processes.specs import WHOLE
from chiasm.launch.vllm import cache_events
from chiasm.launch.vllm import crew as crew_module
from chiasm.launch.vllm.crew import VllmCrew, VllmRosterCrew, served_model
from chiasm.launch.vllm.installed import InstalledVllm
from chiasm.settings import EngineSettings, RoutingSettings, Settings, VllmSettings


@pytest.fixture
def installed(monkeypatch):
    """Pretends that an environment has some vLLM."""

    def pretend(version="0.32.0", num_cuda=0):
        found = InstalledVllm(version=version, distribution="vllm", packages={}, num_cuda=num_cuda)
        monkeypatch.setattr(crew_module, "installed_vllm", lambda setting: found)

    pretend()
    return pretend


def settings(topology="e-pd", **vllm):
    return Settings(routing=RoutingSettings(topology=topology), vllm=VllmSettings(**vllm))


def test_the_packaged_model_is_known_by_its_files():
    model = served_model(settings())
    assert (model.name, model.family, model.takes_images, model.has_deepstack) == ("tiny_vlm", "qwen3_vl", True, True)
    assert "<|image_pad|>" in model.special_tokens
    assert model.embedding_width == 512
    assert served_model(settings(picture_hint=(64, 64))).max_picture_embeddings == 4


@pytest.mark.parametrize("hint", [(64,), (64, 64, 64), (0, 64)])
def test_a_hint_that_is_no_size_is_refused(hint):
    with pytest.raises(InvalidSettingError, match="width and a height"):
        served_model(settings(picture_hint=hint))


def test_a_model_whose_pictures_cannot_be_sized_is_served_whole_and_not_split(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "strange", "vision_config": {}, "hidden_size": 8}')
    (tmp_path / "preprocessor_config.json").write_text('{"image_processor_type": "StrangeImageProcessor"}')
    engine = EngineSettings(model=str(tmp_path))
    whole = served_model(Settings(engine=engine, routing=RoutingSettings(topology="agg")))
    assert (whole.preparer, whole.takes_images) == (None, True)
    with pytest.raises(EngineStartError, match="StrangeImageProcessor"):
        served_model(Settings(engine=engine, routing=RoutingSettings(topology="e-pd")))


def test_servers_are_the_topologys_and_share_this_host(installed):
    crew = VllmCrew(settings("auto"))
    assert [spec.name for spec in crew.specs] == ["encode-0", "worker-0", "worker-1"]
    assert crew.shares_host
    assert not crew.listed
    assert crew.start_timeout_s == VllmSettings().start_timeout_s, "whoever replaces a server waits as long"


def test_servers_on_cpu_share_its_cores_by_their_threads(installed, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4)))

    def crowding(topology, threads, **vllm):
        routing, engine = RoutingSettings(topology=topology, workers=1), EngineSettings(threads=threads)
        return VllmCrew(Settings(routing=routing, engine=engine, vllm=VllmSettings(**vllm))).crowding

    assert [crowding("auto", threads) for threads in (1, 2, 3, 4)] == [0.0, 0.0, 0.5, 1.0]
    assert crowding("agg", 4) == 0.0, "one server"
    assert crowding("agg", 4, data_parallel=2) == 1.0, "whose ranks are workers"
    assert crowding("auto", 2, tensor_parallel=2) == 0.5, "whose parts compute at once"
    installed(num_cuda=2)
    assert crowding("auto", 4) == 0.0, "devices of their own"


def test_versions_that_nobody_tried_and_splits_that_do_not_fit_start_nothing(installed):
    installed(version="0.99.0")
    with pytest.raises(EngineStartError, match=r"0\.99\.0"):
        VllmCrew(settings())
    VllmCrew(settings(assume_version="0.32"))
    installed()
    with pytest.raises(InvalidSettingError, match="4 attention heads"):
        VllmCrew(settings(tensor_parallel=3))
    with pytest.raises(InvalidSettingError, match="data_parallel 9999 makes 9999 parts"):
        VllmCrew(settings(data_parallel=9999))
    with pytest.raises(EngineStartError, match="sees no device"):
        VllmCrew(settings(device="cuda"))
    installed(num_cuda=1)
    with pytest.raises(InvalidSettingError, match="need 2 CUDA devices"):
        VllmCrew(settings())
    VllmCrew(settings(devices=("0", "0")))


def test_servers_that_run_already_need_no_vllm_here(tmp_path, monkeypatch):
    monkeypatch.setattr(crew_module, "installed_vllm", lambda setting: pytest.fail("looked"))
    path = tmp_path / "workers.toml"
    path.write_text('[[workers]]\nurl = "http://10.0.0.7:8000"\nroles = ["encode", "prefill", "decode"]\n')
    crew = VllmCrew(settings("agg", workers_file=str(path)))
    assert crew.listed == [("10.0.0.7:8000", "http://10.0.0.7:8000")]
    assert not crew.specs
    assert not crew.shares_host


def test_a_rosters_servers_need_no_vllm_here_and_their_roles_are_known_by_name(monkeypatch):
    monkeypatch.setattr(crew_module, "installed_vllm", lambda setting: pytest.fail("looked"))
    crew = VllmRosterCrew(settings("agg", data_parallel=2))
    assert (list(crew.specs), list(crew.listed), crew.shares_host) == ([], [], False)
    assert list(crew._by_name) == ["worker-0", "worker-1"]
    assert {(one.roles, one.data_parallel) for one in crew._by_name.values()} == {(WHOLE, 2)}


def test_who_registers_keys_and_values_with_mooncake_must_be_found(installed, tmp_path):
    with pytest.raises(InvalidSettingError, match="does not run on CPU"):
        VllmCrew(settings("e-p-d", kv_connector="mooncake"))
    VllmCrew(settings("e-pd", kv_connector="mooncake"))
    installed(num_cuda=3)
    crew = VllmCrew(settings("e-p-d", kv_connector="mooncake"))
    assert crew._kv_register_of("prefill-0", None, ("prefill",)) == f"http://127.0.0.1:{crew._kv_ports['prefill-0']}"
    assert crew._kv_register_of("decode-0", None, ("decode",)) == ""
    assert VllmCrew(settings("e-p-d"))._kv_register_of("prefill-0", None, ("prefill",)) == "", "NIXL says it itself"
    with pytest.raises(InvalidSettingError, match="'prefill-0' registers"):
        VllmRosterCrew(settings("e-p-d", kv_connector="mooncake"))
    path, entry = tmp_path / "workers.toml", '[[workers]]\nurl = "http://a:8000"\nroles = ["prefill"]\nname = "p"\n'
    listed = settings("e-p-d", kv_connector="mooncake", workers_file=str(path))
    path.write_text(entry)
    with pytest.raises(InvalidSettingError, match="'p' registers"):
        VllmCrew(listed)
    path.write_text(entry + 'kv_bootstrap = "http://a:8998"\n')
    crew = VllmCrew(listed)
    assert crew._kv_register_of("p", crew._by_name["p"], ("prefill",)) == "http://a:8998"
    with pytest.raises(InvalidSettingError, match=r"'p' has kv_bootstrap.*is 'nixl'"):
        VllmCrew(settings("e-p-d", workers_file=str(path)))


def test_events_that_must_be_heard_need_somebody_to_listen(installed, monkeypatch, tmp_path):
    monkeypatch.setattr(cache_events, "has_zmq", lambda: False)
    path = tmp_path / "workers.toml"
    path.write_text('[[workers]]\nurl = "http://a:8000"\nroles = ["prefill", "decode"]\nkv_events = "tcp://a:5557"\n')
    with pytest.raises(MissingExtraError, match="workers' file needs pyzmq"):
        VllmCrew(settings("agg", workers_file=str(path)))
    with pytest.raises(MissingExtraError, match="pyzmq"):
        VllmCrew(settings(kv_events="yes"))
    VllmCrew(settings())


def test_servers_import_this_chiasm_and_nothing_else_of_ours(tmp_path):
    inside = crew_module._importable(tmp_path)
    assert {entry.name for entry in Path(inside).iterdir()} == {"chiasm", f"chiasm-{chiasm.__version__}.dist-info"}
    (found,) = [one for one in distributions(path=[str(inside)]) if one.name == "chiasm"]
    assert {(one.group, one.value) for one in found.entry_points} == {("vllm.general_plugins", crew_module.PLUGIN)}
    assert resolve_name(crew_module.PLUGIN) is register
    assert (inside / "chiasm" / "engines" / "vllm" / "ec_connector.py").is_file()
    assert crew_module._importable(tmp_path) == inside


def test_the_folder_of_a_crew_that_was_killed_goes_with_the_next_that_starts(installed, tmp_path, monkeypatch):
    monkeypatch.setattr(engine_folder, "_MEMORY", tmp_path)
    (parent,) = {engine_folder.engine_folder("", name).parent for name in "ab"}
    left = parent / "ec-left" / "ec-of-its-engine"
    left.mkdir(mode=0o700, parents=True)
    left.with_name("owner").touch()
    (left / "receipt").touch()
    first, second = VllmCrew(settings()), VllmCrew(settings())
    for crew in (first, second):
        crew.spawner(tmp_path, None)
    assert len([one for one in parent.iterdir() if one.name != "ec-left"]) == 2, "nobody takes a living one's"
    assert not left.parent.exists()
    first.close()
    second.close()
    assert list(parent.iterdir()) == []


def test_each_engine_of_a_server_is_listened_to_where_it_publishes(installed, tmp_path):
    crew = VllmCrew(settings("agg", data_parallel=2))
    try:
        crew.spawner(tmp_path, None)
        first, second = (crew._events_of("worker-0", None, rank) for rank in range(2))
    finally:
        crew.close()
    assert (first.publishes, second.publishes) == (
        f"ipc://{tmp_path}/worker-0.kv.tcp:1",
        f"ipc://{tmp_path}/worker-0.kv.tcp:2",
    )
    assert crew._events_of("nobody", None, 1) is None
