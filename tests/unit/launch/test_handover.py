"""A server that is to end while it is being replaced: so is its successor, or there is none."""

import asyncio
import signal
import socket

import pytest

from chiasm.errors import OverloadedError, ShuttingDownError
from chiasm.launch.succession import handover as room
from chiasm.launch.succession.handover import Handover


class Next:
    """A successor that serves when it may."""

    def __init__(self):
        self.may_serve = asyncio.Event()
        self.signals, self.is_ended = [], False

    async def wait_ready(self):
        try:
            await self.may_serve.wait()
        except BaseException:
            self.is_ended = True
            raise

    def pass_on(self, number):
        self.signals.append(number)


@pytest.fixture
async def made(monkeypatch):
    successor = Next()
    monkeypatch.setattr(room, "start_successor", lambda *_: successor)
    with socket.socket() as listener:
        handover = Handover(listener, ["chiasm", "serve"])
    yield handover, successor
    await handover.aclose()
    socket.close(handover.listener)


async def test_a_signal_goes_to_a_successor_that_has_taken_over(made):
    handover, successor = made
    handover.replace()
    with pytest.raises(OverloadedError):
        handover.replace()
    successor.may_serve.set()
    await asyncio.wait_for(handover.is_over.wait(), 30)
    handover.pass_on(signal.SIGTERM)
    assert successor.signals == [signal.SIGTERM]


async def test_a_signal_ends_the_start_of_a_successor_and_none_is_started_after_it(made):
    handover, successor = made
    handover.replace()
    await asyncio.sleep(0)
    handover.pass_on(signal.SIGTERM)
    successor.may_serve.set()
    await handover.aclose()
    assert successor.is_ended
    assert handover.successor is None
    assert not handover.is_over.is_set()
    with pytest.raises(ShuttingDownError):
        handover.replace()
    handover.replace_if_idle()
