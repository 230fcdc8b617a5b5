"""A fleet before its first process: what it refuses, what it says when nobody looks after workers any more."""

import asyncio
import logging

import pytest

from chiasm.errors import InvalidSettingError
from chiasm.launch import fleet
from chiasm.launch.crew import EmbeddedCrew
from chiasm.launch.fleet import WorkerFleet
from chiasm.settings import RoutingSettings, Settings
from tests.conditions import until


@pytest.mark.parametrize(
    ("members", "expected"),
    [((), True), (("unix:/run/a.sock",), True), (("unix:/run/a.sock", "http://10.0.0.7:9001"), False)],
)
def test_media_go_through_the_spool_only_when_every_worker_is_on_this_host(members, expected):
    settings = Settings(routing=RoutingSettings(topology="agg", members=members))
    assert EmbeddedCrew(settings).shares_host is expected


def test_an_unsafe_folder_is_a_plain_error_before_any_process_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(fleet, "Supervisor", lambda *_: pytest.fail("started"))
    tmp_path.chmod(0o777)
    settings = Settings(routing=RoutingSettings(topology="e-pd", directory=str(tmp_path)))
    with pytest.raises(InvalidSettingError, match="not safe"):
        WorkerFleet(settings, lambda what, share: None)


async def test_the_end_of_looking_after_workers_is_not_silent(caplog):
    async def fail():
        raise KeyError("x")

    for work, expected in ((fail(), 1), (asyncio.sleep(30), 1)):
        task = asyncio.create_task(work)
        task.add_done_callback(fleet._report_fault)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)
        assert len([one for one in caplog.records if one.levelno == logging.CRITICAL]) == expected


async def test_a_server_says_what_it_waits_for_before_it_listens(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(fleet, "_FIRST_WORD_S", 0.0)
    caplog.set_level(logging.INFO)
    routing = RoutingSettings(topology="e-pd", encoders=0, prefills=0, directory=str(tmp_path))
    backend = WorkerFleet(Settings(routing=routing), lambda what, share: None)
    opening = asyncio.create_task(backend.opened().__aenter__())
    await until(lambda: "Not listening yet: there is no decode, encode, prefill: none has joined" in caplog.text)
    opening.cancel()
    await asyncio.wait([opening])
