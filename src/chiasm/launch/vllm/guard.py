"""Stands between Chiasm and one vLLM server, and ends with all of the server's processes when Chiasm is gone.

A program of its own that knows nothing but the standard library: `python guard.py COMMAND...`. Its standard input
stays open as long as the owner lives. SIGTERM is handed on; what does not end then is killed with the whole group.
"""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress


def main() -> None:
    """Run the command in this process's group, and the group for no longer than the command and the owner."""
    stop_s = float(sys.argv[1])
    server = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL)  # noqa: S603 - what the owner says

    def end(*_: object) -> None:
        with suppress(ProcessLookupError):
            server.terminate()
        threading.Timer(stop_s, os.killpg, (0, signal.SIGKILL)).start()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the owner, which ends its servers when it has drained
    threading.Thread(target=_until_owner_is_gone, daemon=True).start()
    server.wait()
    os.killpg(0, signal.SIGKILL)  # engines that their server left behind, and this process


def _until_owner_is_gone() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
