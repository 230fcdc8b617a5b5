"""The worker process: reads its order from standard input, reports on standard output, ends when its owner does."""

import os
import signal
import sys
import threading
from io import FileIO

import msgspec

from chiasm.errors import ChiasmError
from chiasm.launch.processes.messages import Failed, Loading, Order, Ready
from chiasm.launch.processes.owner import Reports, Stop
from chiasm.launch.worker import serve_worker
from chiasm.observability.logs import configure_logging


def main() -> None:
    """Serve one worker. Standard input holds one line, the order, and stays open as long as the owner lives."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the server, which ends its workers when it has drained
    report = Reports()
    owner = os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)  # a thread in a buffer spoils the end
    order = msgspec.json.decode(owner.readline(), type=Order)
    configure_logging(order.settings.observability.log_level, order.settings.observability.log_format)
    stop = Stop()
    threading.Thread(target=_until_owner_is_gone, args=(owner, stop), daemon=True).start()
    try:
        serve_worker(
            order.settings,
            order.spec,
            progress=lambda what, share: report(Loading(what, share)),
            on_ready=lambda address: report(Ready(address)),
            on_loop=stop.bind,
        )
    except ChiasmError as error:
        report(Failed(error.code, error.message, error.hint))
        sys.exit(1)


def _until_owner_is_gone(owner: FileIO, stop: Stop) -> None:
    while owner.read(1):
        pass
    stop.set()


if __name__ == "__main__":
    main()
