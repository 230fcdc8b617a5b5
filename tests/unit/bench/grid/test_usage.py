"""What processes below a server use is counted with them."""

import os
import signal
import subprocess
import sys

from chiasm.bench.grid.usage import GATEWAY, cpu_s, shares

_BUSY = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ntime.sleep(60)"
_PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1], *sys.argv[2:]], check=False)"


def test_an_engine_two_levels_down_counts_as_its_workers():
    words = [sys.executable, "-c", _PARENT, _PARENT, _BUSY]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as server:
        try:
            server.stdout.readline()
            used = cpu_s(server.pid, ["worker"])
            assert list(used) == [GATEWAY, "worker"]
            assert used["worker"] >= 0.3
        finally:
            os.killpg(server.pid, signal.SIGKILL)


def test_shares_are_of_the_time_under_load():
    assert shares({"gateway": 1.0}, {"gateway": 2.0, "late": 1.0}, 4.0) == {"gateway": 0.25, "late": 0.25}
