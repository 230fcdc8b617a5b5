"""The gateway alone: real HTTP, checks and media ingest before a worker that answers at once.

With the address of a worker it is the gateway of a fleet of one: pictures go to the spool, calls and streams through
the router and its HTTP client. Without, the worker is in this process, as `chiasm serve` has it.
"""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator

import uvloop

from chiasm.gateway import create_app
from chiasm.launch.memory import settle
from chiasm.launch.server import address_of, bind, serve_app
from chiasm.media.ingest import MediaIngest
from chiasm.media.spool import Spool
from chiasm.protocol.generation import (
    ChoiceFinished,
    GenerateEvent,
    GenerateRequest,
    RequestFinished,
    TokenEvent,
    Usage,
)
from chiasm.protocol.worker import EncodeRequest, EncodeResponse, Worker, WorkerInfo, WorkerStats
from chiasm.routing.remote import RemoteWorker
from chiasm.routing.remote.connection import WorkerConnection
from chiasm.routing.router import Router
from chiasm.settings import RoutingSettings, resolve


class InstantWorker:
    """Says "red", `max_tokens` times, without waiting for anything."""

    info = WorkerInfo(
        model="instant",
        family="instant",
        roles=("encode", "prefill", "decode"),
        dtype="float32",
        device="cpu",
        max_model_tokens=4096,
        takes_images=True,
        model_revision="1",
        processor_revision="1",
        started_at_unix_s=time.time(),
    )

    def stats(self) -> WorkerStats:
        return WorkerStats(
            is_healthy=True,
            num_running=0,
            num_waiting=0,
            num_free_slots=16,
            num_cached_blocks=0,
            num_cached_embeddings=0,
            num_held_embeddings=0,
            num_open_requests=0,
            totals={},
        )

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent, None]:
        num_tokens = request.sampling.max_tokens or 1
        if not request.stream:  # all at the end, as an engine may
            yield TokenEvent(choice=0, text="red " * num_tokens, token_ids=(7,) * num_tokens)
        for _ in range(num_tokens if request.stream else 0):
            yield TokenEvent(choice=0, text="red ", token_ids=(7,))
            await asyncio.sleep(0)  # as tokens of separate steps come; without it the gateway joins them
        yield ChoiceFinished(0, "length")
        usage = Usage(num_prompt_tokens=8, num_output_tokens=num_tokens)
        yield RequestFinished(usage, ())

    async def encode(self, request: EncodeRequest) -> EncodeResponse:
        return EncodeResponse(handles=())

    async def aclose(self) -> None:
        return


def fleet_of_one(address: str) -> Worker:
    """A router before one worker elsewhere, which is taken to be well and is never looked at."""
    router, known = Router(RoutingSettings(topology="agg")), InstantWorker()
    remote = RemoteWorker(WorkerConnection(address, None), known.info, known.stats())
    router.fleet.add("instant", remote).mark_ready()
    return router


async def main() -> None:
    settle()
    settings = resolve(values={"gateway.port": int(sys.argv[1])}).settings
    listener = bind(settings.gateway.host, settings.gateway.port)
    worker: Worker = InstantWorker()
    spool: Spool | None = None
    if len(sys.argv) > 2:
        worker, spool = fleet_of_one(sys.argv[2]), Spool(settings.media)
    app = create_app(worker, MediaIngest(settings.media, None, spool=spool), settings.gateway)

    def ready() -> None:
        print(address_of(listener), flush=True)

    try:
        await serve_app(app, app.state.gateway, listener, settings.gateway, asyncio.Event(), ready)
    finally:
        if spool is not None:
            spool.close()


if __name__ == "__main__":
    uvloop.run(main())
