"""Worker processes as their owner has them: starting, failing to, dying, coming back, ending with the owner."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from chiasm.errors import EngineStartError, UnsupportedModelError
from chiasm.launch.crew import embedded_spawner
from chiasm.launch.processes import process as process_module
from chiasm.launch.processes.messages import Order
from chiasm.launch.processes.process import WorkerProcess
from chiasm.launch.processes.specs import WorkerSpec
from chiasm.launch.processes.supervisor import Supervisor
from chiasm.settings import RoutingSettings, Settings

DEADLINE_S = 30.0
SPEC = WorkerSpec(name="w", roles=("encode",))
SETTINGS = Settings(routing=RoutingSettings(restart_backoff_s=0.01))
ONCE = "import sys, json; order = json.loads(sys.stdin.readline())\n"
SAY = "def say(**message): print(json.dumps(message), flush=True)\n"
UNTIL_ORPHANED = "sys.stdin.read()\n"
READY = ONCE + SAY + "say(type='loading', what='x', share=0.5); say(type='ready')\n" + UNTIL_ORPHANED


@pytest.fixture
def program(monkeypatch):
    """Replaces the worker's program by a script."""

    def replace(script):
        monkeypatch.setattr(process_module, "_COMMAND", (sys.executable, "-c", script))

    return replace


def started(settings=SETTINGS):
    return WorkerProcess(Order(SPEC, settings))


def nothing(what, share):
    """Progress nobody looks at."""


async def until(condition):
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - processes set no events
            await asyncio.sleep(0.01)


def test_a_process_reports_until_it_is_ready_and_ends_when_its_owner_lets_go(program):
    program(READY)
    steps = []
    process = started()
    process.wait_ready(lambda what, share: steps.append((what, share)))
    assert steps == [("w: x", 0.5)]
    assert process.is_alive
    process._process.stdin.close()  # as the system does when the owner dies
    assert process.wait(DEADLINE_S)
    assert not process.is_alive


FAILURES = {
    "reports": (ONCE + SAY + "say(type='failed', code='unsupported_model', message='no')", UnsupportedModelError, "no"),
    "ends": (ONCE, EngineStartError, "ended while it started"),
    "does not read": ("pass", EngineStartError, "ended while it started"),
    "talks nonsense": (ONCE + "print('hello', flush=True)\n" + UNTIL_ORPHANED, EngineStartError, "ended"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_process_that_cannot_start_is_an_error_and_gone(program, name):
    script, error, words = FAILURES[name]
    program(script)
    process = started()
    with pytest.raises(error, match=words):
        process.wait_ready(nothing, timeout_s=DEADLINE_S)
    assert not process.is_alive


def test_a_process_that_never_gets_ready_is_ended(program):
    program(ONCE + UNTIL_ORPHANED)
    process = started()
    with pytest.raises(EngineStartError, match="not ready in time"):
        process.wait_ready(nothing, timeout_s=0.2)
    assert not process.is_alive


async def test_the_end_of_a_process_is_noticed(program):
    program(READY)
    process = started()
    waiting = asyncio.create_task(process.ended())
    os.kill(process.pid, signal.SIGKILL)
    await asyncio.wait_for(waiting, DEADLINE_S)
    process.kill()
    await asyncio.wait_for(process.ended(), DEADLINE_S)  # also long after


@pytest.fixture
def supervisor(tmp_path):
    spawn = embedded_spawner(SETTINGS, tmp_path)
    made = Supervisor([SPEC, WorkerSpec(name="v", roles=("decode",))], spawn, SETTINGS.routing.restart_backoff_s)
    yield made
    made.stop()


async def test_a_dead_process_is_started_again_and_announced(program, supervisor):
    program(READY)
    supervisor.start(nothing)
    heard = []

    async def up(name, address):
        heard.append(("up", name))
        assert address.endswith(f"{name}.sock")

    async def down(name):
        heard.append(("down", name))

    keeping = asyncio.create_task(supervisor.keep(up, down))
    await until(lambda: len(heard) == 2)
    first = supervisor.pids
    os.kill(first["w"], signal.SIGKILL)
    await until(lambda: len(heard) == 4)
    assert heard[2:] == [("down", "w"), ("up", "w")]
    assert supervisor.pids["w"] != first["w"]
    assert supervisor.pids["v"] == first["v"]
    await asyncio.to_thread(supervisor.restart, "v")
    await until(lambda: len(heard) == 6)
    assert supervisor.num_restarts == 2
    keeping.cancel()
    await asyncio.wait([keeping])
    await asyncio.to_thread(supervisor.stop)
    assert supervisor.pids == {}


async def test_a_process_for_which_the_system_has_no_room_is_tried_again(program, tmp_path):
    program(READY)
    begin, refusals = embedded_spawner(SETTINGS, tmp_path), [OSError(errno.ENOMEM, "Cannot allocate memory")]
    heard, begun = [], []

    def spawn(spec):
        if begun and refusals:
            raise refusals.pop()
        begun.append(spec.name)
        return begin(spec)

    async def up(name, address):
        heard.append(name)

    async def down(name):
        assert name == "w"

    supervisor = Supervisor([SPEC], spawn, 0.01)
    supervisor.start(nothing)
    keeping = asyncio.create_task(supervisor.keep(up, down))
    try:
        await until(lambda: heard == ["w"])
        os.kill(supervisor.pids["w"], signal.SIGKILL)
        await until(lambda: heard == ["w", "w"] or keeping.done())
        assert not keeping.done()
        assert refusals == []
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
        await asyncio.to_thread(supervisor.stop)


def test_when_one_cannot_start_none_stays(program, supervisor):
    program(ONCE + SAY + "sys.exit(1) if order['spec']['name'] == 'v' else say(type='ready')\n" + UNTIL_ORPHANED)
    with pytest.raises(EngineStartError, match="Worker v ended"):
        supervisor.start(nothing)
    assert supervisor.pids == {}


def test_a_real_worker_steps_back_with_all_its_threads_and_ends_cleanly(tmp_path):
    spec = WorkerSpec(name="w", roles=("prefill", "decode"), address=f"unix:{tmp_path}/w.sock")
    settings = Settings(routing=RoutingSettings(worker_niceness=4))
    process = WorkerProcess(Order(spec, settings))
    process.wait_ready(nothing)
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    assert {os.getpriority(os.PRIO_PROCESS, int(task.name)) for task in tasks} == {4}
    session = Path(f"/proc/{process.pid}/autogroup")
    assert not session.exists() or session.read_text().split()[-1] == "4"
    process.terminate()
    assert process.wait(DEADLINE_S)
    assert process._process.returncode == 0


def test_processes_end_with_an_owner_that_is_killed(tmp_path):
    """The real worker, whose loading goes on while its owner is already dead."""
    owner = f"""
import sys
from chiasm.launch.processes.messages import Order
from chiasm.launch.processes.process import WorkerProcess
from chiasm.launch.processes.specs import WorkerSpec
from chiasm.settings import Settings
process = WorkerProcess(Order(WorkerSpec(name="w", roles=("encode",), address="unix:{tmp_path}/w.sock"), Settings()))
print(process.pid, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", owner], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        pid = int(running.stdout.readline())
        running.kill()
    deadline_s = time.monotonic() + 120
    with suppress(FileNotFoundError):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline_s, "the worker outlived its owner"
            time.sleep(0.05)
