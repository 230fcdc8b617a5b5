"""One vLLM server by hand: which part of a topology it is, and that nobody else is let in."""

import socket
import tomllib

import msgspec
import pytest

from chiasm.errors import AdapterError, InvalidSettingError
from chiasm.launch.processes.specs import WorkerSpec
from chiasm.launch.server import clear_unix
from chiasm.launch.vllm import by_hand
from chiasm.launch.vllm.by_hand import _split_as, listed, serve_vllm_worker
from chiasm.launch.vllm.workers_file import read_workers
from chiasm.settings import RoutingSettings, Settings, VllmSettings


def spec(*roles, address="http://127.0.0.1:9001"):
    return WorkerSpec(name="w", roles=roles, address=address)


@pytest.mark.parametrize(
    ("roles", "topology", "expected"),
    [
        (("encode",), "local", "e-pd"),
        (("encode",), "auto", "auto"),
        (("prefill", "decode"), "local", "e-pd"),
        (("prefill",), "e-pd", "e-p-d"),
        (("decode",), "local", "e-p-d"),
        (("encode", "prefill", "decode"), "local", "local"),
        (("encode", "prefill", "decode"), "auto", "auto"),
    ],
)
def test_roles_say_what_is_handed_over(roles, topology, expected):
    settings = Settings(routing=RoutingSettings(topology=topology))
    assert _split_as(spec(*roles), settings).routing.topology == expected


def test_what_is_said_can_be_written_into_the_workers_file(tmp_path):
    path = tmp_path / "workers.toml"
    named, ranks = (
        msgspec.structs.replace(spec("prefill", "decode"), name='Ann\'s "first"'),
        VllmSettings(data_parallel=2),
    )
    path.write_text(listed(named, Settings(vllm=ranks)), "utf-8")
    assert tomllib.loads(path.read_text())["workers"][0]["roles"] == ["prefill", "decode"]
    (read,) = read_workers(str(path))
    assert (read.name, read.url, read.roles) == ('Ann\'s "first"', "http://127.0.0.1:9001", ("prefill", "decode"))
    assert (read.data_parallel, read.videos) == (2, True), "as the packaged model takes them"
    path.write_text(listed(spec("encode"), Settings()), "utf-8")
    assert [one.data_parallel for one in read_workers(str(path))] == [1]


@pytest.mark.parametrize(("address", "what"), [("nowhere", "no address"), ("http://10.0.0.7:9001", "without a token")])
def test_nothing_starts_where_it_would_answer_anybody(address, what):
    with pytest.raises(InvalidSettingError, match=what):
        serve_vllm_worker(Settings(), spec("encode", address=address), lambda *_: None, pytest.fail)


def test_only_a_socket_that_is_left_over_is_removed(tmp_path):
    other, left, listened = tmp_path / "notes.txt", tmp_path / "left.sock", tmp_path / "worker.sock"
    other.write_text("kept")
    for path in (left, listened):
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    listened.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(listened))
        listener.listen()
        for path in (other, listened):
            with pytest.raises(InvalidSettingError, match="taken"):
                serve_vllm_worker(Settings(), spec("encode", address=f"unix:{path}"), lambda *_: None, pytest.fail)
            assert path.exists()
    clear_unix(str(left))
    assert not left.exists()


def test_what_a_server_that_could_not_be_started_was_to_share_goes(monkeypatch):
    class Crew:
        is_closed = False

        def spawner(self, folder, spool):
            raise AdapterError("The folder is not below one of the allowed roots")

        def close(self):
            self.is_closed = True

    crew = Crew()
    monkeypatch.setattr(by_hand, "VllmCrew", lambda settings, specs: crew)
    with pytest.raises(AdapterError):
        serve_vllm_worker(Settings(), spec("encode"), lambda *_: None, pytest.fail)
    assert crew.is_closed
