"""Stands between Chiasm and one vLLM server, and ends with all of the server's processes when Chiasm is gone.

A program of its own that knows nothing but the standard library: `python guard.py COMMAND...`. Its standard input
stays open as long as the owner lives. SIGTERM is handed on; what does not end then is killed with the whole group.
SIGUSR1 kills at once.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_GRACE_S = 5.0
_TIDY_S = 2.0
_LOOK_INTERVAL_S = 0.1
_KEEPER = b"multiprocessing.resource_tracker"


def main() -> None:
    """Run the command in this process's group, and the group for no longer than the command and the owner."""
    stop_s = float(sys.argv[1])
    server: subprocess.Popen[bytes] | None = None
    is_asked_to_end = False

    def end(*_: object) -> None:
        nonlocal is_asked_to_end
        is_asked_to_end = True
        if server is not None:
            with suppress(ProcessLookupError):
                server.terminate()
            threading.Timer(stop_s, _end_all).start()

    # before the server starts: a signal that ends this process in between would leave the server behind. They are
    # functions, also that for Ctrl+C, which the owner minds, so that the server has the system's ways with signals
    signal.signal(signal.SIGUSR1, lambda *_: _end_all())
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, lambda *_: None)
    server = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL)  # noqa: S603 - what the owner says
    if is_asked_to_end:
        end()
    threading.Thread(target=_until_owner_is_gone, daemon=True).start()
    server.wait()
    _until_alone(_GRACE_S)  # engines that end by themselves tidy up
    _end_all()


def _end_all() -> None:
    """Kill whoever is left, and this process.

    Last those that keep account of Python's shared memory, which take away what the others have left behind.
    """
    for pid in _company():
        with suppress(OSError):
            if _KEEPER not in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
    _until_alone(_TIDY_S)
    os.killpg(0, signal.SIGKILL)


def _until_alone(timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while any(_company()) and time.monotonic() < deadline_s:
        time.sleep(_LOOK_INTERVAL_S)


def _company() -> Iterator[int]:
    """Who else of this process's group still runs."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _parent, group = path.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):  # it has just ended
            continue
        if int(group) == os.getpgrp() and state != "Z" and path.parent.name != str(os.getpid()):
            yield int(path.parent.name)


def _until_owner_is_gone() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
