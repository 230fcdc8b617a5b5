"""The C library's allocator, as the engine's arithmetic needs it. It reads its variables when a process starts."""

import os

ALLOCATOR_VARIABLES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(8 * 2**30)}
"""Freed memory stays in the process: fresh pages cost about ten times what used ones do."""


def environment_with_allocator() -> dict[str, str] | None:
    """The environment to start this process again with, or None when it has all variables; those set by hand stay."""
    missing = {name: value for name, value in ALLOCATOR_VARIABLES.items() if name not in os.environ}
    return {**os.environ, **missing} if missing else None
