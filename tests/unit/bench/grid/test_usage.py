"""What processes below a server use is counted with them."""

import subprocess
import sys

from chiasm.bench.grid.usage import GATEWAY, cpu_s, shares

_BUSY = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ntime.sleep(60)"
_PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1], *sys.argv[2:]], check=False)"


def test_an_engine_two_levels_down_counts_as_its_workers():
    words = [sys.executable, "-c", _PARENT, _PARENT, _BUSY]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as server:
        try:
            server.stdout.readline()
            used = cpu_s(server.pid, ["worker"])
            assert list(used) == [GATEWAY, "worker"]
            assert used["worker"] >= 0.3
        finally:
            _end(server.pid)


def _end(pid):
    for child in _children_of(pid):
        _end(child)
    subprocess.run(["kill", str(pid)], check=False)


def _children_of(pid):
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout
    return [int(one) for one in found.split()]


def test_shares_are_of_the_time_under_load():
    assert shares({"gateway": 1.0}, {"gateway": 2.0, "late": 1.0}, 4.0) == {"gateway": 0.25, "late": 0.25}
