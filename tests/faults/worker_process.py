"""A worker process that follows a script, to be killed: `python -m tests.faults.worker_process SOCKET`."""

import asyncio
import sys

from chiasm.launch.server import bind_unix, serve_app
from chiasm.workers.server import WorkerServerLimits, create_worker_app
from tests.fakes import FakeWorker, say


async def main() -> None:
    limits = WorkerServerLimits()
    app = create_worker_app(FakeWorker(say(0.01)), limits)
    listener = bind_unix(sys.argv[1])
    await serve_app(app, app, listener, limits, asyncio.Event(), lambda: print("ready", flush=True))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
