"""Addresses and tokens that cannot be right are refused before anything is sent."""

import pytest

from chiasm.errors import EngineDeadError, InvalidSettingError
from chiasm.routing.remote import RemoteWorker
from chiasm.routing.remote.connection import WorkerConnection


@pytest.mark.parametrize(
    "address",
    ["", "10.0.0.7:80", "https://10.0.0.7", "http://", "http://[x", "http://h:port", f"http://10.0.0.7.{'a' * 64}:1"],
)
async def test_an_address_of_no_known_kind(address):
    with pytest.raises(InvalidSettingError) as caught:
        WorkerConnection(address, None)
    assert "10.0.0.7" not in str(caught.value)


@pytest.mark.parametrize("token", ["a\r\nHost: other", "schlüssel", "\x00"])
async def test_a_token_that_would_be_more_than_one(token):
    with pytest.raises(InvalidSettingError):
        WorkerConnection("unix:/x", token)


@pytest.mark.parametrize(
    ("address", "host"),
    [("unix:/x", b"worker"), ("http://10.0.0.7:90/", b"10.0.0.7"), ("http://[::1]:90", b"[::1]")],
)
async def test_every_request_names_its_host(address, host):
    assert b"\r\nHost: " + host + b"\r\n" in WorkerConnection(address, "t")._headers


async def test_who_is_not_there_is_not_called_a_lost_connection(tmp_path):
    with pytest.raises(EngineDeadError) as caught:
        await RemoteWorker.connect(f"unix:{tmp_path}/nobody.sock")
    assert caught.value.message == "Worker that is to join cannot be reached"
