"""Real processes that are killed: requests wait for the next one, and what kills is not given to everybody."""

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import msgspec
import pytest

from chiasm.errors import QuarantinedError
from chiasm.routing.remote import RemoteWorker
from chiasm.routing.router import Router
from chiasm.settings import RoutingSettings
from tests.architecture.repository import ROOT
from tests.conditions import until
from tests.faults.worker_process import DEADLY_WIDTH
from tests.integration.gateway_server import PATIENCE_S
from tests.unit.routing.fleets import outcome_of
from tests.unit.routing.scripted import ask, picture

DEADLY = msgspec.structs.replace(picture("deadly"), width=DEADLY_WIDTH)


@asynccontextmanager
async def process_at(path):
    """A worker process behind a socket; gone at the end, however it was left."""
    command = (sys.executable, "-m", "tests.faults.worker_process", str(path))
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        assert await asyncio.wait_for(process.stdout.readline(), PATIENCE_S) == b"ready\n"
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        process._transport.close()


@asynccontextmanager
async def router_of(**paths):
    """A router that looks after the workers at these sockets."""
    settings = RoutingSettings(
        topology="agg", policy="round_robin", health_interval_s=0.05, restart_backoff_s=0.1, probe_timeout_s=PATIENCE_S
    )
    router = Router(settings)
    for name, path in paths.items():
        router.fleet.add(name, await RemoteWorker.connect(f"unix:{path}", timeout_s=PATIENCE_S))
    router.start()
    try:
        await until(lambda: all(one.state == "ready" for one in router.fleet.members))
        yield router
    finally:
        await router.aclose()


class Routed:
    """What `outcome_of` asks."""

    def __init__(self, router):
        self.router = router


@pytest.mark.parametrize(
    "request_", [ask("are you there", timeout_s=120.0), ask("look", picture("a"), timeout_s=120.0)]
)
async def test_a_request_waits_for_the_next_process_behind_a_socket(request_, tmp_path):
    path = tmp_path / "w.sock"
    async with AsyncExitStack() as closing:
        first = await closing.enter_async_context(process_at(path))
        router = await closing.enter_async_context(router_of(w0=path))
        first.kill()
        await first.wait()
        asked = asyncio.create_task(outcome_of(Routed(router), request_))
        await until(lambda: router.fleet.absence.num_waiting == 1)
        await closing.enter_async_context(process_at(path))
        outcome = await asyncio.wait_for(asked, PATIENCE_S)
        assert outcome.error is None
        assert outcome.words


async def test_a_picture_that_kills_processes_is_kept_from_the_last_one(tmp_path):
    paths = {f"w{number}": tmp_path / f"{number}.sock" for number in range(3)}
    async with AsyncExitStack() as closing:
        processes = [await closing.enter_async_context(process_at(path)) for path in paths.values()]
        router = await closing.enter_async_context(router_of(**paths))
        assert (await outcome_of(Routed(router), ask("look", DEADLY, timeout_s=120.0))).error is not None
        again = await outcome_of(Routed(router), ask("look", DEADLY, request_id="again", timeout_s=120.0))
        assert isinstance(again.error, QuarantinedError)
        assert router.stats().totals["requests_quarantined"] == 1
        harmless = await outcome_of(Routed(router), ask("look", picture("a"), request_id="other", timeout_s=120.0))
        assert harmless.error is None
        await until(lambda: sum(process.returncode is None for process in processes) == 1)
