"""Stepping back: where two of our processes or threads want the same core, the kernel gives the other the larger share.

Never a reason to fail: where the system refuses, or knows nothing of it, priorities stay as they are.
"""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

MOST_NICENESS = 19
_MOST_TRIES, _PAUSE_S = 30, 0.11


def thread_steps_back(niceness: int) -> None:
    """Give the calling thread a lower priority, never a higher one.

    Args:
        niceness: 0 to 19, as of `nice`: against a thread of 0, one of 5 gets a quarter of a core that both want.
    """
    _lower(threading.get_native_id(), niceness)


def process_steps_back(niceness: int) -> None:
    """Give all threads of this process a lower priority, and its session where nobody else is in that; 0: nothing.

    Linux shares cores out between sessions first (autogroup): the priority of a thread counts within its session only.
    """
    if not niceness:
        return
    _lower_threads(os.getpid(), niceness)
    if os.getsid(0) == os.getpid():
        _lower_session(os.getpid(), niceness)


def session_steps_back(leader: int, niceness: int) -> None:
    """Give all processes that run in a session, which are another program's, a lower priority; 0: nothing.

    Args:
        leader: The number of the process that the session was made for.
        niceness: As of `thread_steps_back`.
    """
    if not niceness:
        return
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended
            if os.getsid(int(folder.name)) == leader:
                _lower_threads(int(folder.name), niceness)
    _lower_session(leader, niceness)


def _lower_session(leader: int, niceness: int) -> None:
    """Linux lets users other than root do this ten times a second, all together, and says `EAGAIN` to the others."""
    for _ in range(_MOST_TRIES):
        try:
            Path(f"/proc/{leader}/autogroup").write_text(str(niceness), "ascii")
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        except OSError:  # a system without autogroups, or one that lets nobody set them
            return
        else:
            return


def _lower_threads(process: int, niceness: int) -> None:
    with suppress(OSError):  # a system without /proc, or the process has ended
        for task in Path(f"/proc/{process}/task").iterdir():
            _lower(int(task.name), niceness)


def _lower(thread: int, niceness: int) -> None:
    with suppress(OSError):  # the thread has ended, or the system lets nobody set it
        if os.getpriority(os.PRIO_PROCESS, thread) < niceness:
            os.setpriority(os.PRIO_PROCESS, thread, niceness)
