"""`chiasm report`: it says how far it is, ends in time, and leaves all of its files or none."""

import asyncio
import os
import signal

import pytest
from typer.testing import CliRunner

from chiasm.cli.app import app
from chiasm.errors import DeadlineExceededError


@pytest.fixture(autouse=True)
def same_handler():
    """What SIGTERM does to the tests is theirs again."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def stalling(monkeypatch):
    """A server that answers two steps, and what happened to the one who asked."""
    endings = []

    async def make_report(server, plan, folder, on_step, watcher):
        on_step("text", 0, 7)
        on_step("1x224", 1, 7)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            endings.append(folder.exists())
            raise

    monkeypatch.setattr("chiasm.reporting.gathering.make_report", make_report)
    return endings


def test_one_that_takes_too_long_is_given_up_and_leaves_nothing(stalling, tmp_path):
    made = CliRunner().invoke(app, ["report", "-o", str(tmp_path / "r.html"), "--minutes", "0.01"])
    assert isinstance(made.exception, DeadlineExceededError)
    assert "after 0.01 minutes, at step 2 of 7, 1x224; nothing is written" in made.exception.message
    assert made.stderr.splitlines() == ["Step 1 of 7, text", "Step 2 of 7, 1x224"]
    assert (stalling, list(tmp_path.iterdir())) == ([True], [])


def test_one_that_is_interrupted_leaves_nothing(monkeypatch, tmp_path):
    async def make_report(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("chiasm.reporting.gathering.make_report", make_report)
    made = CliRunner().invoke(app, ["report", "-o", str(tmp_path / "r.html")])
    assert made.exit_code != 0
    assert list(tmp_path.iterdir()) == []


def test_one_that_is_told_to_end_leaves_no_folder_of_its_own(monkeypatch, tmp_path):
    folders = []

    async def make_report(server, plan, folder, on_step, watcher):
        folders.append(folder)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    monkeypatch.setattr("chiasm.reporting.gathering.make_report", make_report)
    made = CliRunner().invoke(app, ["report", "-o", str(tmp_path / "r.html")])
    assert made.exit_code != 0
    assert [folder.exists() for folder in folders] == [False]
    assert list(tmp_path.iterdir()) == []


def test_an_ending_of_another_time_is_not_taken_for_its_own(monkeypatch, tmp_path):
    async def make_report(*_):
        raise TimeoutError("another")

    monkeypatch.setattr("chiasm.reporting.gathering.make_report", make_report)
    made = CliRunner().invoke(app, ["report", "-o", str(tmp_path / "r.html")])
    assert isinstance(made.exception, TimeoutError)
