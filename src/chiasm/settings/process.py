"""Variables that C libraries read when they start, as the engine's arithmetic on shared cores needs them.

Freed memory stays in the process, since fresh pages cost about ten times what used ones do. Threads of torch's
operations sleep while they wait for each other: a thread that spins keeps the core from the one it waits for, which
doubles the time beside one busy process; on a machine of one's own sleeping costs a tenth (docs/experiments.md).
"""

import ctypes
import errno
import os
from collections.abc import Mapping

ALLOCATOR_VARIABLES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(8 * 2**30)}
THREAD_VARIABLES = {"OMP_WAIT_POLICY": "passive"}


def environment_for_arithmetic() -> dict[str, str] | None:
    """The environment to start this process again with, or None when it has all variables; those set by hand stay."""
    missing = {k: v for k, v in (ALLOCATOR_VARIABLES | THREAD_VARIABLES).items() if k not in os.environ}
    return {**os.environ, **missing} if missing else None


def prepare_threads() -> None:
    """Set what still takes effect in a running process that has not imported torch."""
    for name, value in THREAD_VARIABLES.items():
        os.environ.setdefault(name, value)


def unless_set(variables: Mapping[str, str]) -> dict[str, str]:
    """What another program is given of these variables; what was set by hand stays."""
    return {name: os.environ.get(name, value) for name, value in variables.items()}


def is_set_by_hand(name: str) -> bool:
    """Whether one of `ALLOCATOR_VARIABLES` has a value that is not ours."""
    return os.environ.get(name, ALLOCATOR_VARIABLES[name]) != ALLOCATOR_VARIABLES[name]


def return_freed_memory() -> None:
    """Let go of what was freed, all the same: for what is large and was needed once. Does nothing without glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def inherited_environment() -> dict[str, str]:
    """What other programs get of this process's environment: all but what was set for our own arithmetic."""
    own = ALLOCATOR_VARIABLES | THREAD_VARIABLES
    return {name: value for name, value in os.environ.items() if own.get(name) != value}


def refuse_usage_statistics() -> None:
    """Keep Ray, where we start it, from reporting to its makers."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def is_refused_by_system(error: BaseException) -> bool:
    """Whether it says that the system starts no further thread or process; threads have no class for that."""
    refused_process = isinstance(error, OSError) and error.strerror == os.strerror(errno.EAGAIN)  # fork's words
    return refused_process or (isinstance(error, RuntimeError) and "can't start new thread" in str(error))
