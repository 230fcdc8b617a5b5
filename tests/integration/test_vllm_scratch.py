"""What servers leave that are killed with those that would have tidied up: a small program stands in for them."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from chiasm.launch.vllm.process import Command, VllmProcess
from chiasm.launch.vllm.scratch import Scratch, environment_in
from tests.integration.test_vllm_process import SERVER, nothing, until_gone

MEMORY = Path("/dev/shm")
SHARING = """
import tempfile
from multiprocessing import shared_memory
block = shared_memory.SharedMemory(create=True, size=4096)
open(tempfile.gettempdir() + "/vllm_dist_1", "w").write(block.name)
""" + SERVER  # fmt: skip
OWNER = """
import os, sys, time
from pathlib import Path
from chiasm.launch.vllm.process import Command, VllmProcess
from chiasm.launch.vllm.scratch import Scratch, environment_in
scratch = Scratch(Path(sys.argv[1]))
folder = scratch.renewed("v")
command = Command(arguments=tuple(sys.argv[2:]), environment=environment_in(folder, dict(os.environ)), scratch=folder,
                  address="unix:" + sys.argv[-1], start_timeout_s=60, stop_timeout_s=0.2)
process = VllmProcess("v", command)
process.wait_ready(lambda what, share: None)
print(process.pid, folder, flush=True)
time.sleep(600)
"""

pytestmark = pytest.mark.skipif(not MEMORY.is_dir(), reason="no shared memory to look at")


def begin(folder, socket):
    command = Command(
        arguments=(sys.executable, "-c", SHARING, socket),
        environment=environment_in(folder, dict(os.environ)),
        address=f"unix:{socket}",
        start_timeout_s=60.0,
        stop_timeout_s=5.0,
        scratch=folder,
    )
    process = VllmProcess("v", command)
    process.wait_ready(nothing)
    return process


def segment_of(folder):
    """Where the server's memory is; it is there."""
    path = MEMORY / (folder / "vllm_dist_1").read_text()
    assert path.exists()
    return path


def kill_all(process, tmp_path):
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(30.0)
    until_gone(int((tmp_path / "v.sock.pids").read_text()))


def test_what_a_killed_server_left_goes_when_it_is_started_again(tmp_path):
    scratch = Scratch(tmp_path / "scratch")
    folder = scratch.renewed("v")
    process = begin(folder, str(tmp_path / "v.sock"))
    segment = segment_of(folder)
    kill_all(process, tmp_path)
    assert segment.exists(), "nobody was left to tidy up"
    assert scratch.renewed("v") == folder
    assert not segment.exists()
    assert list(folder.iterdir()) == []
    scratch.close()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_memory_of_a_server_that_lives_stays(tmp_path):
    scratch = Scratch(tmp_path / "scratch")
    folder = scratch.renewed("v")
    process = begin(folder, str(tmp_path / "v.sock"))
    segment = segment_of(folder)
    try:
        scratch.renewed("v")
        assert segment.exists()
    finally:
        process.kill()
        scratch.close()


def test_another_segment_that_got_the_name_stays(tmp_path):
    scratch = Scratch(tmp_path / "scratch")
    folder = scratch.renewed("v")
    process = begin(folder, str(tmp_path / "v.sock"))
    segment = segment_of(folder)
    kill_all(process, tmp_path)
    keeper = segment.open("rb")  # its inode is not given to another one meanwhile
    segment.unlink()
    other = shared_memory.SharedMemory(segment.name, create=True, size=4096)
    try:
        other.close()  # nobody has it mapped
        scratch.close()
        assert segment.exists()
    finally:
        keeper.close()
        other.unlink()


def test_what_a_killed_owner_left_goes_with_the_next_start(tmp_path):
    parent, socket = tmp_path / "scratch", str(tmp_path / "v.sock")
    arguments = [sys.executable, "-c", OWNER, str(parent), sys.executable, "-c", SHARING, socket]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as owner:
        group, folder = owner.stdout.readline().split()
        segment = segment_of(Path(folder))
        os.killpg(int(group), signal.SIGKILL)
        owner.kill()
    until_gone(int((tmp_path / "v.sock.pids").read_text()), int(group))
    assert segment.exists()
    assert Path(folder).exists()
    scratch = Scratch(parent)
    assert not segment.exists()
    assert not Path(folder).exists()
    scratch.close()


def test_a_folder_that_the_system_has_tidied_away_keeps_no_server_from_starting_or_ending(tmp_path):
    scratch = Scratch(tmp_path / "scratch")
    shutil.rmtree(tmp_path / "scratch")
    assert scratch.renewed("v").is_dir()
    shutil.rmtree(tmp_path / "scratch")
    scratch.close()


def test_compiled_code_outlives_a_server(tmp_path):
    made = environment_in(tmp_path, {"USER": "somebody"})
    assert made["TMPDIR"] == str(tmp_path)
    assert made["TORCHINDUCTOR_CACHE_DIR"].endswith("torchinductor_somebody")
    kept = environment_in(tmp_path, {"TORCHINDUCTOR_CACHE_DIR": "/kept", "TMPDIR": "/other"})
    assert (kept["TORCHINDUCTOR_CACHE_DIR"], kept["TMPDIR"]) == ("/kept", str(tmp_path))


def test_sockets_stay_where_their_names_are_short_enough(tmp_path):
    assert environment_in(Path("/t/v"), {})["VLLM_RPC_BASE_PATH"] == "/t/v"
    deep = environment_in(tmp_path / ("x" * 80), {})
    assert deep["VLLM_RPC_BASE_PATH"] == tempfile.gettempdir()
    assert environment_in(Path("/t/v"), {"VLLM_RPC_BASE_PATH": "/own"})["VLLM_RPC_BASE_PATH"] == "/own"
