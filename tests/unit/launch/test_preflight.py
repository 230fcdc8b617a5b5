"""Files that cannot be used are found before a model is loaded."""

import logging

import pytest

from chiasm.errors import AdapterError, InvalidSettingError
from chiasm.launch import local
from chiasm.launch.cluster.serve import serve_on_cluster
from chiasm.launch.local import LocalServer, start_backend
from chiasm.launch.preflight import check_backend, check_gateway
from chiasm.settings import resolve


def settings(*overrides):
    return resolve(environment={}, overrides=("gateway.port=0", *overrides)).settings


@pytest.fixture
def no_engine(monkeypatch):
    monkeypatch.setattr(local, "start_worker", lambda *_: pytest.fail("loaded"))
    monkeypatch.setattr(local, "bind", lambda *_: pytest.fail("bound"))


def unused(*_):
    pytest.fail("started")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("keys_file", None, "The keys file cannot be read: No such file"),
        ("keys_file", b"[[keys]", "The keys file is not TOML"),
        ("keys_file", b"\xff\xfe", "The keys file is not UTF-8"),
        ("keys_file", b'[[keys]]\nid = "a"\n', "The keys file: Object missing required field"),
        ("audit_file", None, "gateway.audit_file cannot be appended to: No such file"),
    ],
)
def test_files_of_a_gateway(tmp_path, no_engine, name, content, said):
    folder = tmp_path / "folder" if content is None else tmp_path
    if content is not None:
        (folder / "file").write_bytes(content)
    wrong = settings(f"gateway.{name}={folder / 'file'}")
    for start in (lambda: LocalServer(wrong, unused, unused), lambda: serve_on_cluster(wrong, unused, unused)):
        with pytest.raises(InvalidSettingError, match=said):
            start()


@pytest.mark.parametrize(("more", "warns"), [((), True), (("gateway.api_keys=['k']",), False)])
def test_a_keys_file_without_keys_lets_nobody_in_and_says_so(tmp_path, monkeypatch, caplog, more, warns):
    monkeypatch.setattr(logging.getLogger("chiasm"), "propagate", True)
    (tmp_path / "keys.toml").write_text("")
    check_gateway(settings(f"gateway.keys_file={tmp_path / 'keys.toml'}", *more).gateway)
    assert ("The keys file has no key" in caplog.text) == warns


def test_a_folder_is_no_audit_file(tmp_path, no_engine):
    with pytest.raises(InvalidSettingError, match="cannot be appended to: Is a directory"):
        LocalServer(settings(f"gateway.audit_file={tmp_path}"), unused, unused)


@pytest.mark.parametrize("topology", ["local", "agg"])
def test_workers_of_a_file_are_not_left_out_without_a_word(no_engine, topology):
    wrong = settings("vllm.workers_file=workers.toml", f"routing.topology={topology}")
    with pytest.raises(InvalidSettingError, match="servers of vLLM, and the engine is embedded") as caught:
        start_backend(wrong, unused)
    assert "--engine vllm" in caught.value.hint


def test_an_adapter_that_is_not_there_is_named(tmp_path, no_engine):
    wrong = settings(f'adapters.preload=["mine={tmp_path}"]')
    with pytest.raises(AdapterError, match=r"Adapter 'mine': The folder has no readable adapter_config\.json"):
        start_backend(wrong, unused)


def test_a_root_of_adapters_that_cannot_be_one_is_found_before_one_is_asked_for(no_engine):
    with pytest.raises(InvalidSettingError, match=r"adapters\.roots: ~no-such-user-here/x cannot be found"):
        start_backend(settings('adapters.roots=["~no-such-user-here/x"]'), unused)


def test_adapters_of_workers_elsewhere_need_not_lie_here(tmp_path):
    adapter = f'adapters.preload=["mine={tmp_path}"]'
    elsewhere = ("routing.topology=e-pd", "routing.prefills=0", 'routing.members=["http://10.0.0.5:9000"]')
    check_backend(settings(adapter, *elsewhere, "routing.encoders=1"))
    with pytest.raises(AdapterError):
        check_backend(settings(adapter, *elsewhere, "routing.prefills=1"))


def test_costs_without_a_fleet_are_an_error_that_says_so(tmp_path):
    with pytest.raises(InvalidSettingError, match=r"routing\.topology is local"):
        check_backend(settings(f"routing.costs={tmp_path / 'costs.json'}"))


def test_a_file_without_costs_is_found_before_a_worker_is_started(tmp_path, no_engine):
    (tmp_path / "costs.json").write_text("{}")
    wrong = settings("routing.topology=auto", f"routing.costs={tmp_path / 'costs.json'}")
    with pytest.raises(InvalidSettingError, match="does not hold stage costs"):
        start_backend(wrong, unused)
