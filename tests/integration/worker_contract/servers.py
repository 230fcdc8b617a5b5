"""A worker behind its HTTP server, in the test's own loop."""

import asyncio
from contextlib import asynccontextmanager

from chiasm.launch.server import address_of, bind, bind_unix, serve_app
from chiasm.routing.remote import RemoteWorker
from chiasm.workers.server import WorkerServerLimits, create_worker_app
from tests.integration.gateway_server import PATIENCE_S

CARRIERS = ("unix", "tcp")


@asynccontextmanager
async def served(worker, listener, **limits):
    """The application around `worker`, listening; drains at the end."""
    limits = WorkerServerLimits(**limits)
    app = create_worker_app(worker, limits)
    stop, ready = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(serve_app(app, app, listener, limits, stop, ready.set))
    try:
        await asyncio.wait_for(ready.wait(), PATIENCE_S)
        yield app
    finally:
        stop.set()
        await asyncio.wait_for(serving, PATIENCE_S)


def listener(carrier, folder):
    """A socket of the kind to be tested."""
    return bind_unix(str(folder / "w.sock")) if carrier == "unix" else bind("127.0.0.1", 0)


@asynccontextmanager
async def remote(worker, carrier, folder, *, token=None, **limits):
    """`worker` through HTTP; gives its application and a `RemoteWorker` for it."""
    socket = listener(carrier, folder)
    async with served(worker, socket, token=token, **limits) as app:
        client = await RemoteWorker.connect(address_of(socket), token=token)
        try:
            yield app, client
        finally:
            await client.aclose()
