"""What a process and its owner have in common: words for the owner, and an end from another thread."""

import asyncio
import os
import sys
import threading
from contextlib import suppress

import msgspec


class Stop:
    """Ends the server from another thread, also when that has not come up yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False
        self._target: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def bind(self, loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
        """Say what ends the server."""
        with self._lock:
            self._target = loop, event
            if self._is_set:
                event.set()

    def set(self) -> None:
        """End the server, now or as soon as it is bound."""
        with self._lock:
            self._is_set = True
            if self._target is not None:
                loop, event = self._target
                with suppress(RuntimeError):  # the loop is closed: the worker is ending already
                    loop.call_soon_threadsafe(event.set)


class Reports:
    """Takes standard output for itself; what libraries print there goes to standard error from now on."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def __call__(self, message: msgspec.Struct) -> None:
        """Say it; nobody need hear it."""
        with suppress(BrokenPipeError):  # the owner is gone: the end of standard input says so, too
            self._out.write(msgspec.json.encode(message) + b"\n")
