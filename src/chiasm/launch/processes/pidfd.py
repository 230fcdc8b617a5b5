"""Waiting for the end of a process on an event loop."""

import asyncio
import os
from collections.abc import Callable


async def process_ended(pid: int, is_alive: Callable[[], bool]) -> None:
    """Wait until a child process has ended; `is_alive` looks once more, when nothing can be missed any more."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(descriptor, over.set)
        if is_alive():
            await over.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
