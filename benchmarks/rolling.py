"""Everything of a fleet is replaced under load, one after the other: no request may fail, no answer may change.

Gateways over two encoders, two prefill and two decode workers, each a process at an address, as under an orchestrator.
Clients ask greedy questions of all gateways in turn; some are streams that run while something ends. Then, as
docs/guides/upgrade.md says: each worker gets SIGTERM and is started again, the next one once every gateway lists it as
ready; each gateway is given a successor over its own admin call; last, the store is killed and started. Every answer
is compared with that of a server which nothing happens to.
"""

import argparse
import asyncio
import itertools
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks import machine
from benchmarks.chaos import Fleet, Process, free_port, questions, redis, reference, running
from chiasm.faults.client import FINISHED, Client
from chiasm.faults.questions import Question

RESULTS = Path(__file__).parent / "results/operations"
_ADMIN_KEY = "rolling-operator"
_HEADERS = {"Authorization": f"Bearer {_ADMIN_KEY}"}
_PATIENCE_S = 300.0
_LOOK_INTERVAL_S = 0.2
_PAUSE_S = 0.05
_ANSWERS_BETWEEN = 6


class Rolling:
    """Asks all the time, and replaces one thing after the other.

    Attributes:
        failures: What was not answered right: when, and what came instead.
        steps: What was replaced, when, how long it took, and how many answers came meanwhile.
    """

    def __init__(self, fleet: Fleet, asked: Sequence[Question], right: Sequence[list[str]], seed: int) -> None:
        self._fleet = fleet
        self._asked = list(zip(asked, right, strict=True))
        self._random = random.Random(seed)
        self._turns = itertools.count()
        self._began_s = time.monotonic()
        self._stop = asyncio.Event()
        self.num_answers = 0
        self.failures: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []

    async def run(self, num_clients: int) -> None:
        """Until all is replaced and every request has ended."""
        async with AsyncExitStack() as closing:
            addresses = [gateway.said["address"] for gateway in self._fleet.gateways]
            clients = [await closing.enter_async_context(Client(address)) for address in addresses]
            operator = await closing.enter_async_context(aiohttp.ClientSession(headers=_HEADERS))
            async with asyncio.TaskGroup() as group:
                for _ in range(num_clients):
                    group.create_task(self._client(clients))
                try:
                    async with asyncio.timeout(_PATIENCE_S * (len(self._fleet.workers) + len(addresses) + 1)):
                        await self._replace_all(operator, addresses)
                finally:
                    self._stop.set()

    async def _replace_all(self, operator: aiohttp.ClientSession, addresses: Sequence[str]) -> None:
        for name, worker in self._fleet.workers.items():
            await self._step(f"worker {name}", partial(self._restart, operator, addresses, name, worker))
        for number, address in enumerate(addresses):
            await self._step(f"gateway {number}", partial(self._succeed, operator, address))
        if self._fleet.store is not None:
            await self._step("store", self._kill_store)

    async def _step(self, what: str, act: Callable[[], Awaitable[None]]) -> None:
        """Do it while answers come, and let some more come behind it."""
        began_s, before, failed = self._now_s, self.num_answers, len(self.failures)
        await act()
        enough = self.num_answers + _ANSWERS_BETWEEN
        while self.num_answers < enough:  # noqa: ASYNC110 - clients set no event
            await asyncio.sleep(_LOOK_INTERVAL_S)
        step = {
            "what": what,
            "at_s": round(began_s, 2),
            "took_s": round(self._now_s - began_s, 2),
            "answers": self.num_answers - before,
            "failures": len(self.failures) - failed,
        }
        self.steps.append(step)
        print(json.dumps(step), file=sys.stderr)

    async def _restart(
        self, operator: aiohttp.ClientSession, addresses: Sequence[str], name: str, worker: Process
    ) -> None:
        starts = worker.num_starts
        worker.signal(signal.SIGTERM)
        while worker.num_starts == starts:  # noqa: ASYNC110 - its keeper sets no event
            await asyncio.sleep(_LOOK_INTERVAL_S)
        for address in addresses:
            while await _state_of(operator, address, name) != "ready":  # noqa: ASYNC110 - asked over the network
                await asyncio.sleep(_LOOK_INTERVAL_S)

    async def _succeed(self, operator: aiohttp.ClientSession, address: str) -> None:
        async with operator.post(f"{address}/admin/gateway/restart") as response:
            former = await response.json()
            if response.status != 200:
                raise SystemExit(f"The gateway cannot be replaced: {former}")
        now = former
        while now["pid"] == former["pid"]:
            await asyncio.sleep(_LOOK_INTERVAL_S)
            async with operator.get(f"{address}/admin/gateway", params={"while": "starting"}) as response:
                now = await response.json()
            if now["pid"] == former["pid"] and now["state"] == "serving":
                raise SystemExit(f"The gateway stays: {now['error']}")

    async def _kill_store(self) -> None:
        store = self._fleet.store
        assert store is not None
        starts = store.num_starts
        store.signal(signal.SIGKILL)
        while store.num_starts == starts:  # noqa: ASYNC110 - its keeper sets no event
            await asyncio.sleep(_LOOK_INTERVAL_S)

    @property
    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    async def _client(self, clients: Sequence[Client]) -> None:
        while not self._stop.is_set():
            question, right = self._random.choice(self._asked)
            answer = await clients[next(self._turns) % len(clients)].ask(question)
            self.num_answers += 1
            if answer.outcome != FINISHED or answer.tokens != right:
                outcome = answer.outcome if answer.outcome != FINISHED else "another answer"
                self.failures.append({"at_s": round(self._now_s, 2), "outcome": outcome, "status": answer.status})
            await asyncio.sleep(_PAUSE_S)  # what starts needs the cores, too


async def _state_of(operator: aiohttp.ClientSession, address: str, name: str) -> str:
    async with operator.get(f"{address}/debug/state") as response:
        members = (await response.json())["fleet"]["members"]
    return next((str(one["state"]) for one in members if one["name"] == name), "gone")


def result_of(rolling: Rolling) -> dict[str, Any]:
    """What is written down."""
    return {
        "requests": rolling.num_answers,
        "failed": len(rolling.failures),
        "outcomes": dict(Counter(one["outcome"] for one in rolling.failures)),
        "failures": rolling.failures[:50],
        "steps": rolling.steps,
    }


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run it; returns the result."""
    asked = questions(args.questions, args.timeout_s)
    right = await reference(asked)
    port = free_port() if redis() is not None and not args.no_store else None
    async with running(port, args.gateways, {"gateway.admin_keys": json.dumps([_ADMIN_KEY])}) as fleet:
        rolling = Rolling(fleet, asked, right, args.seed)
        await rolling.run(args.clients)
        return result_of(rolling)


def main(argv: list[str]) -> None:
    """Run, write one result file where it has a name, and end with status 1 when a request failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks rolling", description=__doc__)
    parser.add_argument("--gateways", type=int, default=3)
    parser.add_argument("--clients", type=int, default=6, help="requests under way at once")
    parser.add_argument("--questions", type=int, default=24, help="different requests")
    parser.add_argument("--timeout-s", type=float, default=60.0, help="deadline of a request")
    parser.add_argument("--no-store", action="store_true", help="gateways that share nothing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="", help="end of the result file's name; none: nothing is written")
    args = parser.parse_args(argv)
    described = machine.describe()
    result = asyncio.run(measure(args))
    print(json.dumps(result, indent=1))
    if args.name:
        path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{args.name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"machine": described} | result) + "\n")
        print(f"written: benchmarks/results/operations/{path.name}")
    raise SystemExit(1 if result["failed"] else 0)
