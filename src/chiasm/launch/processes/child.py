"""The worker process: reads its order from standard input, reports on standard output, ends when its owner does."""

import asyncio
import os
import signal
import sys
import threading
from contextlib import suppress
from io import FileIO

import msgspec

from chiasm.errors import ChiasmError
from chiasm.launch.processes.messages import Failed, Loading, Order, Ready
from chiasm.launch.worker import serve_worker
from chiasm.observability.logs import configure_logging


def main() -> None:
    """Serve one worker. Standard input holds one line, the order, and stays open as long as the owner lives."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the server, which ends its workers when it has drained
    report = _Reports()
    owner = os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)  # a thread in a buffer spoils the end
    order = msgspec.json.decode(owner.readline(), type=Order)
    configure_logging(order.settings.observability.log_level, order.settings.observability.log_format)
    stop = _Stop()
    threading.Thread(target=_until_owner_is_gone, args=(owner, stop), daemon=True).start()
    try:
        serve_worker(
            order.settings,
            order.spec,
            progress=lambda what, share: report(Loading(what, share)),
            on_ready=lambda _address: report(Ready()),
            on_loop=stop.bind,
        )
    except ChiasmError as error:
        report(Failed(error.code, error.message, error.hint))
        sys.exit(1)


class _Stop:
    """Ends the server from another thread, also when that has not come up yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False
        self._target: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def bind(self, loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
        with self._lock:
            self._target = loop, event
            if self._is_set:
                event.set()

    def set(self) -> None:
        with self._lock:
            self._is_set = True
            if self._target is not None:
                loop, event = self._target
                with suppress(RuntimeError):  # the loop is closed: the worker is ending already
                    loop.call_soon_threadsafe(event.set)


def _until_owner_is_gone(owner: FileIO, stop: _Stop) -> None:
    while owner.read(1):
        pass
    stop.set()


class _Reports:
    """Takes standard output for itself; what libraries print there goes to standard error from now on."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def __call__(self, message: msgspec.Struct) -> None:
        with suppress(BrokenPipeError):  # the owner is gone: the end of standard input says so, too
            self._out.write(msgspec.json.encode(message) + b"\n")


if __name__ == "__main__":
    main()
