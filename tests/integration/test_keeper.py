"""The keeper of a server's place, over scripted servers: signals and replacements that come during others."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

PATIENCE_S = 60

SERVER = """
import pathlib, signal, socket, sys, time
folder, number = pathlib.Path(sys.argv[1]), len(list(pathlib.Path(sys.argv[1]).glob("*.started"))) + 1
def note(what): (folder / f"{number}.{what}").touch()
def wait(what):
    while not (folder / what).exists(): time.sleep(0.01)
def end(*_):
    note("told to end")
    wait("end")
    sys.exit(7)
signal.alarm(300)  # should the test end before it says so
signal.signal(signal.SIGTERM, end)
channel = socket.socket(fileno=int(sys.argv[-1].split(",")[1]))
(folder / f"{number}.pid").write_text(str(__import__("os").getpid()))
note("started")
wait(f"{number} may serve")
channel.send(b"R")
note("serves")
while said := channel.recv(1):
    note({b"L": "leaves", b"F": "stays"}[said])
note("orphaned")
"""

STARTER = """
import asyncio, socket, sys
from chiasm.launch.succession.keeper import become_keeper
from chiasm.launch.succession.successor import start_successor
listener = socket.socket(fileno=int(sys.argv[1]))
command = sys.argv[2:]
successor = start_successor(command, listener.fileno())
asyncio.run(successor.wait_ready())
become_keeper(successor, listener.fileno(), command)
"""


class Place:
    """A keeper, and what its servers say in files of a folder."""

    def __init__(self, folder):
        self.folder = folder
        self.allow("1 may serve")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            command = [sys.executable, "-c", STARTER, str(listener.fileno()), sys.executable, "-c", SERVER, str(folder)]
            self.keeper = subprocess.Popen(command, pass_fds=[listener.fileno()])
        self.wait("1.serves")
        self.until(lambda: self._listens_to(signal.SIGUSR2))

    def allow(self, what):
        (self.folder / what).touch()

    def has(self, what):
        return (self.folder / what).exists()

    def wait(self, what):
        self.until(lambda: self.has(what))

    def until(self, condition):
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, "it never happened"
            time.sleep(0.01)

    def replace(self, number):
        self.allow(f"{number} may serve")
        self.keeper.send_signal(signal.SIGUSR2)
        self.wait(f"{number}.serves")
        self.wait(f"{number - 1}.leaves")

    def is_alive(self, number):
        try:
            os.kill(int((self.folder / f"{number}.pid").read_text()), 0)
        except ProcessLookupError:
            return False
        return True

    def _listens_to(self, number):
        status = Path(f"/proc/{self.keeper.pid}/status").read_text().splitlines()
        caught = next(line for line in status if line.startswith("SigCgt:"))
        return int(caught.split()[1], 16) >> (number - 1) & 1

    def close(self):
        self.allow("end")
        self.keeper.kill()
        self.keeper.wait()


@pytest.fixture
def place(tmp_path):
    made = Place(tmp_path)
    yield made
    made.close()


def test_a_server_that_is_starting_does_not_outlive_the_end_of_the_one_that_serves(place):
    place.keeper.send_signal(signal.SIGUSR2)
    place.wait("2.started")
    place.keeper.terminate()
    place.wait("1.told to end")
    place.until(lambda: not place.is_alive(2))
    place.allow("2 may serve")
    place.allow("end")
    assert place.keeper.wait(PATIENCE_S) == 7
    assert not place.has("2.serves")


def test_servers_that_leave_are_let_finish_however_many_follow_them(place):
    for number in (2, 3, 4):
        place.replace(number)
    assert not any(place.has(f"{number}.orphaned") for number in (1, 2, 3, 4))
    place.keeper.terminate()
    for number in (1, 2, 3, 4):
        place.wait(f"{number}.told to end")
    place.allow("end")
    assert place.keeper.wait(PATIENCE_S) == 7
