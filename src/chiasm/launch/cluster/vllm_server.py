"""A server of vLLM in an actor: its order on standard input, its word on standard output, gone with its owner."""

import os
import signal
import sys
import threading
from io import FileIO

import msgspec

from chiasm.errors import ChiasmError
from chiasm.launch.processes.messages import Failed, Loading, Order, Ready
from chiasm.launch.processes.owner import Reports
from chiasm.launch.vllm.by_hand import serve_vllm_worker
from chiasm.observability.logs import configure_logging


def main() -> None:
    """Run one server until the owner is gone or SIGTERM comes. Nothing of it stays, however this process ends."""
    report = Reports()
    owner = os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    order = msgspec.json.decode(owner.readline(), type=Order)
    configure_logging(order.settings.observability.log_level, order.settings.observability.log_format)
    threading.Thread(target=_until_owner_is_gone, args=(owner,), daemon=True).start()
    try:
        serve_vllm_worker(
            order.settings,
            order.spec,
            progress=lambda what, share: report(Loading(what, share)),
            on_ready=lambda address: report(Ready(address)),
        )
    except ChiasmError as error:
        report(Failed(error.code, error.message, error.hint))
        sys.exit(1)


def _until_owner_is_gone(owner: FileIO) -> None:
    while owner.read(1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
