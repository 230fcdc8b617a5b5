"""Unix sockets: whose they are, and what may lie where one is to be."""

import asyncio
import socket
import stat
import subprocess
import sys

import pytest

from chiasm.errors import InvalidSettingError
from chiasm.launch.server import address_of, bind_unix, serve_app
from chiasm.workers.server import WorkerServerLimits, create_worker_app
from tests.fakes import FakeWorker


@pytest.fixture
def path(tmp_path):
    return tmp_path / "w.sock"


def test_only_this_user_may_connect(path):
    with bind_unix(str(path)) as listener:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert address_of(listener) == f"unix:{path}"


def test_what_a_process_left_behind_is_replaced(path):
    bind_unix(str(path)).close()
    assert path.is_socket()
    bind_unix(str(path)).close()


def test_a_socket_in_use_is_not_taken(path):
    with bind_unix(str(path)) as listener:
        listener.listen()
        with pytest.raises(InvalidSettingError):
            bind_unix(str(path))
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_of_two_workers_with_one_path_the_second_is_refused_also_before_the_first_listens(path):
    with bind_unix(str(path)) as first:
        with pytest.raises(InvalidSettingError, match="another worker has this socket"):
            bind_unix(str(path))
        first.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))  # it is still the first one's
    bind_unix(str(path)).close()


def test_a_path_is_free_when_the_process_that_had_it_was_killed(path):
    program = (
        "import sys, time; from chiasm.launch.server import bind_unix; "
        "bound = bind_unix(sys.argv[1]); print(1, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"1\n"
            with pytest.raises(InvalidSettingError, match="another worker"):
                bind_unix(str(path))
        finally:
            process.kill()
    bind_unix(str(path)).close()


def test_other_files_are_left_alone(path):
    path.write_text("mine")
    with pytest.raises(InvalidSettingError):
        bind_unix(str(path))
    assert path.read_text() == "mine"


@pytest.mark.parametrize("name", ["x" * 200, "no/such/folder"])
def test_a_path_that_cannot_be_is_a_settings_error(tmp_path, name):
    with pytest.raises(InvalidSettingError):
        bind_unix(str(tmp_path / name))


async def test_a_server_that_has_ended_leaves_nothing_behind(path):
    limits, stop = WorkerServerLimits(), asyncio.Event()
    app = create_worker_app(FakeWorker(), limits)
    await serve_app(app, app, bind_unix(str(path)), limits, stop, stop.set)
    assert not path.exists()


async def test_while_a_server_runs_generators_are_not_listed_and_forgotten_ones_are_closed(path):
    limits, stop, is_closed = WorkerServerLimits(), asyncio.Event(), asyncio.Event()
    app = create_worker_app(FakeWorker(), limits)
    listening = asyncio.Event()
    serving = asyncio.create_task(serve_app(app, app, bind_unix(str(path)), limits, stop, listening.set))

    async def numbers():
        try:
            yield 1
        finally:
            is_closed.set()

    async with asyncio.timeout(10):
        await listening.wait()
        assert sys.get_asyncgen_hooks().firstiter is None
        forgotten = numbers()
        assert await anext(forgotten) == 1
        del forgotten
        await is_closed.wait()
        stop.set()
        await serving
