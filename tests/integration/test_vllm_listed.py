"""A workers' file whose servers do not make a fleet: the start ends with what is missing, and why."""

import pytest

from chiasm.errors import EngineStartError
from chiasm.launch.local import background_server
from chiasm.settings import resolve


def test_a_fleet_that_does_not_come_together_says_who_did_not_join_and_why(tmp_path, monkeypatch):
    monkeypatch.setattr("chiasm.launch.fleet._JOIN_TIMEOUT_S", 2.0)
    listed = tmp_path / "workers.toml"
    listed.write_text(f'[[workers]]\nname = "whole"\nurl = "unix:{tmp_path}/nobody"\nroles = ["prefill", "decode"]\n')
    given = ["engine.kind=vllm", "routing.topology=agg", "gateway.port=0", f"vllm.workers_file={listed}"]
    settings = resolve(environment={}, overrides=given).settings
    with (
        pytest.raises(EngineStartError, match=r"no decode, encode, prefill: whole did not join \(Nobody answers at"),
        background_server(settings, lambda what, share: None),
    ):
        raise AssertionError("it did not start")
