"""A worker process that follows a script, to be killed: `python -m tests.faults.worker_process SOCKET`.

A picture of `DEADLY_WIDTH` kills it, as a fault in a codec would.
"""

import asyncio
import os
import signal
import sys

from chiasm.launch.server import bind_unix, serve_app
from chiasm.workers.server import WorkerServerLimits, create_worker_app
from tests.fakes import FakeWorker, say

DEADLY_WIDTH = 13


def script(request):
    """Say the words of the prompt, or die."""
    if any(item.width == DEADLY_WIDTH for item in request.items):
        os.kill(os.getpid(), signal.SIGKILL)
    return say(0.01)(request)


async def main() -> None:
    limits = WorkerServerLimits()
    app = create_worker_app(FakeWorker(script), limits)
    listener = bind_unix(sys.argv[1])
    await serve_app(app, app, listener, limits, asyncio.Event(), lambda: print("ready", flush=True))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
