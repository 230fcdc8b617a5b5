"""Which ports are left to servers that bind them late."""

import socket

import pytest

from chiasm.errors import EngineStartError
from chiasm.launch.vllm import ports


def named(folder, text):
    file = folder / "range"
    file.write_text(text)
    return file


def test_what_the_system_hands_out_is_left_out(tmp_path):
    found = ports.lasting_ports(named(tmp_path, "32768\t60999\n"))
    assert {10_240, 32_767, 61_000, 65_535} <= set(found)
    assert not set(range(32_768, 61_000)) & set(found)
    assert min(found) == 10_240


@pytest.mark.parametrize("text", ["1024 65535", "nonsense", "1 2 3", ""])
def test_where_that_leaves_none_or_is_not_said_all_will_do(tmp_path, text):
    assert set(ports.lasting_ports(named(tmp_path, text))) == set(range(10_240, 65_536))
    assert ports.lasting_ports(tmp_path / "missing")


def test_a_port_that_is_taken_is_passed_over(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as other:
        busy, free = taken.getsockname()[1], other.getsockname()[1]
        other.close()
        monkeypatch.setattr(ports, "lasting_ports", lambda _: [])
        monkeypatch.setattr(ports.random, "sample", lambda *_: [busy, free])
        assert ports.lasting_port("127.0.0.1") == free


def test_a_host_that_is_not_here_is_said():
    with pytest.raises(EngineStartError, match=r"192\.0\.2\.250"):
        ports.lasting_port("192.0.2.250")
