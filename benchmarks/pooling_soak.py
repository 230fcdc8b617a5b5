"""Pooling requests without end against one server in this process: some fail in `post`, some clients leave.

Every answer is compared, bit for bit, with that of the same request alone. In the end every request must be accounted
for, nothing of any request may be left, and memory must not have grown.
"""

import argparse
import asyncio
import gc
import json
import logging
import random
import tempfile
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.soak import present, resident_bytes, slope
from chiasm.gateway.pooling.exchange import PoolingEndpoint
from chiasm.gateway.pooling.tasks import PoolingDialect
from chiasm.gateway.state import Gateway
from chiasm.launch.pooling import start_pooling_worker
from chiasm.media.ingest import MediaIngest
from chiasm.pooling.io.base import IOProcessor, ProcessorWork, RequestContext
from chiasm.pooling.io.image_ranker import ImageRanker
from chiasm.pooling.io.reranker import Reranker
from chiasm.protocol.pooling.work import PoolOutput
from chiasm.settings import resolve
from chiasm.tenancy.keys import ANONYMOUS
from tests.asgi import Call

RESULTS = Path(__file__).parent / "results" / "pooling"
FAILS = "told to fail: "
FINISHED, LEFT, FAILED = "finished", "cancelled", "plugin_failed"
LONGEST_STAY_S = 0.03
NUM_SAMPLES = 400
MAX_GROWTH_BYTES = 64.0
MIN_REQUESTS_FOR_GROWTH = 20_000
SHOW_EVERY_S = 10.0


class State:
    """What a processor leaves for its own `post`, and whether that fails; can be watched."""

    def __init__(self, inner: Any, *, fails: bool) -> None:
        self.inner = inner
        self.fails = fails


class Brittle(IOProcessor):
    """Another processor, whose `post` fails for queries that say so. `states` are those that are still there."""

    name = "brittle"

    def __init__(self, inner: IOProcessor) -> None:
        super().__init__(inner.info)
        self._inner = inner
        self.parse = inner.parse  # type: ignore[method-assign]
        self.merge_params = inner.merge_params  # type: ignore[method-assign]
        self.media = inner.media  # type: ignore[method-assign]
        self.states: weakref.WeakSet[State] = weakref.WeakSet()

    def parse(self, data: object) -> Any:
        """The other's, see above."""

    def pre(self, request: Any, context: RequestContext) -> ProcessorWork:
        work = self._inner.pre(request, context)
        context.state = State(context.state, fails=request.query.startswith(FAILS))
        self.states.add(context.state)
        return work

    def post(self, outputs: Sequence[PoolOutput], context: RequestContext) -> object:
        state: State = context.state
        if state.fails:
            raise RuntimeError("told to fail")
        context.state = state.inner
        return self._inner.post(outputs, context)


@dataclass
class Served:
    """A server without sockets."""

    gateway: Gateway
    processor: Brittle
    endpoint: PoolingEndpoint

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        await self.endpoint(scope | {"tenant": ANONYMOUS}, receive, send)


@dataclass
class Tally:
    """What came of the requests, and memory on the way: pairs of requests ended and resident bytes."""

    ends: Counter[str] = field(default_factory=Counter)
    num_different: int = 0
    memory: list[tuple[int, int]] = field(default_factory=list)


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[Served]:
    settings = resolve(environment={}, overrides=[f"engine.model={directory}", "engine.threads=1"]).settings
    worker = start_pooling_worker(settings, lambda *_: None)
    ingest = MediaIngest(settings.media, None)
    gateway = Gateway(worker, ingest, settings.gateway)
    processor = Brittle((ImageRanker if worker.pooling.takes_images else Reranker)(worker.pooling))
    endpoint = PoolingEndpoint(gateway, PoolingDialect({processor.name: processor}), settings.pooling.max_inputs)
    try:
        yield Served(gateway, processor, endpoint)
    finally:
        await ingest.aclose()
        await worker.aclose()


class Soak:
    """Sends requests from several clients at once."""

    def __init__(self, server: Served, bodies: list[dict[str, Any]], args: argparse.Namespace) -> None:
        self._server = server
        self._bodies = bodies
        self._args = args
        self._random = random.Random(args.seed)
        self._numbers = iter(range(args.requests))
        self._right: list[Any] = []
        self.tally = Tally()

    async def run(self) -> None:
        """Learn what is right, one request at a time; then send all of them."""
        self._right = [(await self._ask(body))["data"] for body in self._bodies]
        shown = asyncio.create_task(self._show())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._args.clients):
                    group.create_task(self._client())
        finally:
            shown.cancel()
            await asyncio.wait({shown})

    async def _ask(self, body: dict[str, Any], stays_s: float | None = None) -> dict[str, Any]:
        call = Call(self._server.app, "/pooling", body)
        if stays_s is not None:
            asyncio.get_running_loop().call_later(stays_s, call.leave)
        await call.run()
        parts = [message.get("body", b"") for message in call.messages if message["type"] == "http.response.body"]
        found: dict[str, Any] = json.loads(b"".join(parts)) if parts else {}
        return found

    async def _client(self) -> None:
        for number in self._numbers:
            index = self._random.randrange(len(self._bodies))
            body, chance = self._bodies[index], self._random.random()
            if chance < self._args.failing:
                body = body | {"data": body["data"] | {"query": FAILS + body["data"]["query"]}}
            leaves = self._random.random() < self._args.leave
            answer = await self._ask(body, self._random.uniform(0.0, LONGEST_STAY_S) if leaves else None)
            self._note(answer, index)
            if number % max(1, self._args.requests // NUM_SAMPLES) == 0:
                self.tally.memory.append((number, resident_bytes()))

    def _note(self, answer: dict[str, Any], index: int) -> None:
        if "data" in answer:
            self.tally.ends[FINISHED] += 1
            self.tally.num_different += answer["data"] != self._right[index]
        elif "error" in answer:
            self.tally.ends[answer["error"]["code"]] += 1
        else:
            self.tally.ends[LEFT] += 1

    async def _show(self) -> None:
        started_s = time.perf_counter()
        while True:
            await asyncio.sleep(SHOW_EVERY_S)
            done, took_s = self.tally.ends.total(), time.perf_counter() - started_s
            left_s = (self._args.requests - done) * took_s / max(1, done)
            print(f"{done} of {self._args.requests} requests, {left_s:.0f} s left", flush=True)


def bodies_of(count: int, model: str, seed: int) -> list[dict[str, Any]]:
    """Different requests of one to four candidates."""
    made = random.Random(seed)

    def text(most: int) -> str:
        return " ".join(
            made.choice(("alpha", "beta", "gamma", "delta", "epsilon")) for _ in range(made.randint(1, most))
        )

    pictures = _pictures(24) if model == "pictures" else []
    bodies = []
    for _ in range(count):
        number = made.randint(1, 4)
        some = [made.choice(pictures) for _ in range(number)] if pictures else [text(8) for _ in range(number)]
        bodies.append({"task": "plugin", "data": {"query": text(4), "candidates": some}})
    return bodies


def _pictures(count: int) -> list[str]:
    import pybase64  # noqa: PLC0415 - with the pictures, of use to one of the models only

    from tests.numeric.pooling.pictures import png  # noqa: PLC0415

    return ["data:image/png;base64," + pybase64.b64encode(png(48, 40, n)).decode() for n in range(count)]


def build_model(directory: Path, model: str) -> Path:
    from tests.numeric.pooling.models import build, build_image_ranker  # noqa: PLC0415 - loads torch

    if model == "pictures":
        return build_image_ranker(directory)
    return build(directory, "bert", "sequence", num_labels=1)


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run it; returns the result."""
    with tempfile.TemporaryDirectory() as folder:
        directory = build_model(Path(folder) / "m", args.model)
        async with served(directory) as server:
            before, started_s, cpu_s = present(), time.perf_counter(), time.process_time()
            soak = Soak(server, bodies_of(args.questions, args.model, args.seed), args)
            await soak.run()
            took_s = time.perf_counter() - started_s
            gc.collect()
            stats = server.gateway.worker.stats()
            stays = {
                "open in the gateway": server.gateway.admission.num_open,
                "open in the worker": stats.num_open_requests,
                "waiting in the engine": stats.num_waiting,
                "pictures under way": stats.num_held_embeddings,
                "states of processors": len(server.processor.states),
            }
            after = present()
    tally = soak.tally
    return {
        "requests": args.requests,
        "ends": dict(tally.ends),
        "different_answers": tally.num_different,
        "stays": stays,
        "requests_per_s": args.requests / took_s,
        "cpu_s_per_request": (time.process_time() - cpu_s) / args.requests,
        "rss_bytes_per_request": slope(tally.memory),
        "rss_bytes": {"first": tally.memory[0][1], "last": tally.memory[-1][1]},
        "worker": dict(stats.totals),
        "before": before,
        "after": after,
        "memory": tally.memory,
    }


def complaints(result: dict[str, Any]) -> list[str]:
    """What is not as it must be."""
    grows = result["requests"] >= MIN_REQUESTS_FOR_GROWTH and result["rss_bytes_per_request"] > MAX_GROWTH_BYTES
    found = {
        "requests are not accounted for": sum(result["ends"].values()) != result["requests"],
        "requests ended in ways that nobody asked for": not set(result["ends"]) <= {FINISHED, LEFT, FAILED},
        "nothing failed or nobody left": not {FINISHED, LEFT, FAILED} <= set(result["ends"]),
        "the same inputs came to something else": result["different_answers"] > 0,
        "something stays": any(result["stays"].values()),
        "tasks are left": result["after"]["tasks"] > result["before"]["tasks"],
        "memory grows": grows,
    }
    return [what for what, is_so in found.items() if is_so]


def main(argv: list[str]) -> None:
    """Run, write one result file, and end with status 1 when something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks pooling_soak", description=__doc__)
    parser.add_argument("--model", choices=("text", "pictures"), default="text", help="a reranker, or an image ranker")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=16, help="requests under way at once")
    parser.add_argument("--questions", type=int, default=200, help="different requests")
    parser.add_argument("--failing", type=float, default=0.01, help="share of requests whose post fails")
    parser.add_argument("--leave", type=float, default=0.05, help="share of clients that leave")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="soak", help="end of the result file's name")
    args = parser.parse_args(argv)
    logging.disable(logging.ERROR)  # of a thousand processors that were told to fail
    result = asyncio.run(measure(args))
    wrong = complaints(result)
    print(json.dumps({key: value for key, value in result.items() if key != "memory"} | {"wrong": wrong}, indent=1))
    if args.name:
        RESULTS.mkdir(parents=True, exist_ok=True)
        path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{args.name}.json"
        written = {"machine": machine.describe(), "command": vars(args), "wrong": wrong} | result
        path.write_text(json.dumps(written) + "\n")
        print(f"written: benchmarks/results/pooling/{path.name}")
    raise SystemExit(1 if wrong else 0)
