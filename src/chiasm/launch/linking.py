"""Keeping a gateway's link to others, from before it serves to after it has."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from chiasm.launch.backend import Announcing, Backend
from chiasm.observability.logs import LOGGER
from chiasm.sharing.base import Store
from chiasm.sharing.link import ASSUMED_GATEWAYS, Link


@asynccontextmanager
async def linked(store: Store, backend: Backend, assumed_gateways: int = ASSUMED_GATEWAYS) -> AsyncIterator[Link]:
    """Run a link to the store inside the block; workers may join by it before the backend is opened."""
    link = Link(store, assumed_gateways=assumed_gateways)
    await link.round()
    keeping = asyncio.create_task(_keep(link, backend))
    keeping.add_done_callback(partial(_report_fault, link))
    try:
        yield link
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
        await link.aclose()


async def _keep(link: Link, backend: Backend) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(link.run())
        if link.is_shared and isinstance(backend, Announcing):
            group.create_task(backend.keep_announced(link))


def _report_fault(link: Link, task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and isinstance(fault := task.exception(), Exception):
        link.give_up(fault)
        LOGGER.critical("Nothing is shared with other gateways any more: restart the server", exc_info=fault)
