"""What receipts, metrics, logs and traces cost: the same requests with and without them, in turns within a round.

The application is called in this process, without sockets. CPU time of the whole process is compared, the engine's
threads included, so that other work on the machine inflates both sides alike; wall time beside it means something on a
quiet machine only. `share_of_a_request` is what is added before a worker that answers at once, over the CPU time of a
request to the packaged model: the engine's own time varies by more than that between blocks. Without: no span is
noted, no receipt attributed, nothing counted, kept, logged or exported.
"""

import argparse
import asyncio
import json
import logging
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from io import StringIO
from typing import Any
from unittest import mock

import uvloop
from starlette.types import ASGIApp

from benchmarks import machine
from benchmarks.gateway_tax import RESULTS
from benchmarks.instant_gateway import InstantWorker
from benchmarks.ratios import median_ratio
from chiasm.bench.workload.bodies import BodyMaker, Dialect
from chiasm.bench.workload.classes import RequestClass
from chiasm.gateway import create_app
from chiasm.gateway.exchange.account import Account
from chiasm.gateway.receipts import ReceiptRing
from chiasm.gateway.tracing import Tracing
from chiasm.launch.local import InProcess
from chiasm.media.ingest import MediaIngest
from chiasm.observability.logs import configure_logging
from chiasm.observability.metrics import GatewayMetrics
from chiasm.observability.receipt import Receipt, StageClock
from chiasm.observability.trace_export import TraceExporter
from chiasm.settings import GatewaySettings, resolve

_PATH = "/v1/chat/completions"
_OK = 200
_NOTHING = Receipt(
    request_id="", model="", outcome="finished", ttft_s=None, e2e_s=0, stages_s={}, unaccounted_s=0, decode_s=0
)
# cell -> (engine, pictures, tokens of an answer, requests of a block)
CELLS = {
    "gateway alone, text": ("instant", 0, 8, 400),
    "gateway alone, stream of 64": ("instant", 0, 64, 100),
    "tiny model, text": ("tiny", 0, 32, 10),
    "tiny model, 1 picture": ("tiny", 1, 32, 4),
}


class _NoStage:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@contextmanager
def nothing_seen() -> Iterator[None]:
    """No span, no receipt, no count, no line."""
    level = logging.getLogger("chiasm").level
    with ExitStack() as stack:
        for owner, name, stand_in in (
            (StageClock, "add", lambda *_, **__: None),
            (StageClock, "stage", lambda *_, **__: _NoStage()),
            (Account, "receipt", lambda *_: _NOTHING),
            (GatewayMetrics, "receive", lambda *_: None),
            (GatewayMetrics, "end", lambda *_: None),
            (GatewayMetrics, "media", lambda *_: None),
            (ReceiptRing, "add", lambda *_: None),
            (Tracing, "begin", lambda *_: None),
            (Tracing, "end", lambda *_: None),
        ):
            stack.enter_context(mock.patch.object(owner, name, stand_in))
        logging.getLogger("chiasm").setLevel("ERROR")
        try:
            yield
        finally:
            logging.getLogger("chiasm").setLevel(level)


def _silently(_what: str, _share: float) -> None: ...


@asynccontextmanager
async def applications() -> Any:
    """The gateway before a worker that answers at once, and before the packaged model."""
    settings = resolve(environment={}, overrides=["gateway.port=0"]).settings
    instant = MediaIngest(settings.media, None)
    model = await asyncio.to_thread(InProcess, settings, _silently)
    async with model.opened() as (worker, ingest):
        yield {
            "instant": create_app(InstantWorker(), instant, GatewaySettings()),
            "tiny": create_app(worker, ingest, settings.gateway),
        }
    await instant.aclose()


async def call(app: ASGIApp, body: bytes) -> None:
    """One request, read to its end."""
    sent: list[Any] = []
    pieces = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return pieces.pop() if pieces else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope = {"type": "http", "method": "POST", "path": _PATH, "raw_path": _PATH.encode(), "query_string": b""}
    await app(scope | {"headers": headers, "http_version": "1.1", "scheme": "http"}, receive, send)
    if sent[0]["status"] != _OK:
        raise RuntimeError(f"status {sent[0]['status']}: {sent[-1].get('body')}")


async def block(app: ASGIApp, bodies: list[bytes]) -> dict[str, float]:
    """Microseconds of a request, one after the other; each in a task of its own, as the server has it."""
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    for body in bodies:
        await asyncio.create_task(call(app, body))
    count = len(bodies)
    return {
        "cpu_us": (time.process_time() - cpu_s) / count * 1e6,
        "wall_us": (time.perf_counter() - wall_s) / count * 1e6,
    }


def bodies_of(cell: str, seed: str, count: int) -> list[bytes]:
    """Requests nobody has sent before; both sides get the same kinds, never the same content."""
    engine, images, tokens, _ = CELLS[cell]
    kind = RequestClass(images=images, output_tokens=tokens, image_width=224, image_height=224)
    maker = BodyMaker((kind,), Dialect(model="instant" if engine == "instant" else "tiny_vlm"), seed)
    return [maker.make(kind, number) for number in range(count)]


async def measure(rounds: int, scale: float) -> dict[str, Any]:
    """All cells, in rounds whose two sides come in random order."""
    sides: dict[str, Callable[[], Any]] = {"with": ExitStack, "without": nothing_seen}
    rows: dict[str, dict[str, list[dict[str, float]]]] = {cell: {side: [] for side in sides} for cell in CELLS}
    rng = random.Random(0)
    async with applications() as apps:
        for cell, (engine, *_, size) in CELLS.items():
            count = max(1, round(size * scale))
            for number in range(-1, rounds):  # the first warms up
                for side in rng.sample(sorted(sides), 2):
                    bodies = bodies_of(cell, f"{cell}:{number}:{side}", count)
                    with sides[side]():
                        row = await block(apps[engine], bodies)
                    if number >= 0:
                        rows[cell][side].append(row)
        traced = await _traced(apps["instant"], rounds, scale)
    cells = {cell: _summary(found) for cell, found in rows.items()}
    added_us = cells["gateway alone, text"]["added_cpu_us"]
    shares = {
        cell: added_us / cells[cell]["cpu_us_without"] for cell, (engine, *_) in CELLS.items() if engine == "tiny"
    }
    return {"cells": cells, "share_of_a_request": shares, "traces": traced, "rows": rows}


async def _traced(app: Any, rounds: int, scale: float) -> dict[str, Any]:
    """Recording traces, on top of all else. Nobody sends them: that happens beside the requests, and is not in it."""
    gateway = app.state.gateway
    cell = "gateway alone, text"
    count = max(1, round(CELLS[cell][-1] * scale))
    found: dict[str, list[dict[str, float]]] = {"with": [], "without": []}
    rng = random.Random(1)
    for number in range(rounds):
        for side in rng.sample(sorted(found), 2):
            gateway.tracing.exporter = TraceExporter("http://127.0.0.1:9", 1.0, "1") if side == "with" else None
            found[side].append(await block(app, bodies_of(cell, f"traces:{number}:{side}", count)))
    gateway.tracing.exporter = None
    return _summary(found)


def _summary(found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    figures = {
        name: {side: [row[name] for row in rows] for side, rows in found.items()} for name in ("cpu_us", "wall_us")
    }
    cpu = figures["cpu_us"]
    return {
        "cpu_us_with": statistics.median(cpu["with"]),
        "cpu_us_without": statistics.median(cpu["without"]),
        "added_cpu_us": statistics.median(a - b for a, b in zip(cpu["with"], cpu["without"], strict=True)),
        "cpu_ratio": median_ratio(cpu["with"], cpu["without"]),
        "wall_ratio": median_ratio(figures["wall_us"]["with"], figures["wall_us"]["without"]),
    }


def main(argv: list[str]) -> None:
    """Measure and write one result file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks overhead", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of requests in a block")
    parser.add_argument("--name", default="overhead", help="end of the result file's name; empty: print alone")
    args = parser.parse_args(argv)
    described = machine.describe()
    configure_logging("info")
    for handler in logging.getLogger("chiasm").handlers:
        handler.setStream(StringIO())  # type: ignore[attr-defined]
    result = {"machine": described, "rounds": args.rounds, **uvloop.run(measure(args.rounds, args.scale))}
    print(json.dumps({name: result[name] for name in ("cells", "share_of_a_request", "traces")}, indent=1))
    if args.name:
        path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{args.name}.json"
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(f"written: benchmarks/results/{path.name}")
