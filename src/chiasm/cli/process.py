"""What commands that compute do to their own process first."""

import os
import signal
import sys

from chiasm.settings.process import environment_for_arithmetic


def restart_for_arithmetic() -> None:
    """Start this process again, once, with the variables that the C library reads only at start."""
    environment = environment_for_arithmetic()
    if environment is not None:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606 - ourselves


def leave_on_sigterm() -> None:
    """Have SIGTERM end a command as Ctrl+C does: files, clients and servers of its own go with it."""
    signal.signal(signal.SIGTERM, _leave)


def _leave(*_: object) -> None:
    raise KeyboardInterrupt
