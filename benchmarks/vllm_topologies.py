"""Chiasm's topologies over vLLM against one vLLM server asked directly, on the same cores.

All servers run side by side; one way at a time is asked, in turns of random order, and every way gets the same
requests: new pictures, so that nothing is cached. Times are divided request by request. The server that is asked
directly has all of the threads; each server of a topology has one, or as many as `--way-threads` says, which then
compete for the cores when several compute.
"""

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import machine, models
from benchmarks.epd.intervals import interval, ratio_of_medians, verdict
from benchmarks.epd.requests import SIDE_OF_TOKENS, TEXT, body, pictures
from benchmarks.gateway_tax import RESULTS
from benchmarks.sending import send, shuffled
from chiasm.bench.grid.servers import Server, servers
from chiasm.bench.grid.spec import GridSpec, Topology
from chiasm.bench.metrics.ttft import wire_ttft_s
from chiasm.bench.record import Record
from chiasm.errors import ChiasmError
from tests.vllm.servers import start, wait_ready

BASELINE = "vllm"
WAYS = (BASELINE, "agg", "e-pd", "auto")
MOST_WORSE = 1.03
NUM_WARM = 2
"""So many turns are for everything that happens once."""
START_TIMEOUT_S = 1000.0
TIMEOUT_S = 600.0
"""Of one request, and of the small ones by which a gateway looks after idle servers: ways that are not asked share
cores with the one that is, and a gateway that took a slow answer for a dead server would start it again."""
_ENVIRONMENT = {"TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}

Pairs = dict[str, list[dict[str, float] | None]]
"""Times of each way's requests, in the same order; None where one was not answered."""


def parsed(argv: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks vllm_topologies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--python", type=Path, required=True, help="interpreter of an environment that has vLLM")
    parser.add_argument("--model", choices=("tiny", "120m"), default="tiny", help="packaged, or random of that size")
    parser.add_argument("--ways", nargs="+", choices=WAYS[1:], default=["e-pd", "auto"], help="beside vLLM itself")
    parser.add_argument("--threads", type=int, help="of the server asked directly; default: one for each core")
    parser.add_argument("--way-threads", type=int, default=1, help="of each server of a topology")
    parser.add_argument(
        "--way-environment", nargs="+", default=[], metavar="NAME=VALUE", help="of the topologies' servers"
    )
    parser.add_argument(
        "--environment", nargs="+", default=[], metavar="NAME=VALUE", help="of the server asked directly"
    )
    parser.add_argument("--turns", type=int, default=12, help="how often each way is asked")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4], help="requests open at once")
    parser.add_argument("--images", type=int, default=1, help="pictures of a request")
    parser.add_argument("--tokens", type=int, default=64, choices=SIDE_OF_TOKENS, help="visual tokens of a picture")
    parser.add_argument("--output", type=int, default=16, help="tokens of an answer")
    parser.add_argument("--name", help="the result file's name; default topologies-MODEL")
    args = parser.parse_args(argv)
    if any("=" not in one for one in args.way_environment + args.environment):
        parser.error("--environment and --way-environment take NAME=VALUE")
    args.threads = args.threads or len(os.sched_getaffinity(0))
    args.name = args.name or f"topologies-{args.model}"
    return args


def serving(args: argparse.Namespace, way: str, model: Path) -> tuple[str, ...]:
    """Arguments of `chiasm serve` for a way: one worker of each kind that its topology has."""
    settings = (
        f"vllm.python={args.python}",
        f"engine.threads={args.way_threads}",
        "engine.dtype=float32",
        "routing.workers=1",
        "routing.encoders=1",
        f"routing.probe_timeout_s={TIMEOUT_S}",
        f"gateway.request_timeout_s={TIMEOUT_S}",
    )
    words = ["--engine", "vllm", "--topology", way, "--model", str(model)]
    return (*words, *(word for setting in settings for word in ("--set", setting)))


@asynccontextmanager
async def running(args: argparse.Namespace) -> AsyncIterator[Mapping[str, Server]]:
    """Every way's servers."""
    model = models.picture_model(args.model)
    with _direct(args.python, model, args.threads, _variables(args.environment)) as url:
        topologies = [Topology(name=BASELINE, url=url)]
        topologies += [Topology(name=way, serve=serving(args, way, model)) for way in args.ways]
        spec = GridSpec(
            topologies=tuple(topologies),
            baseline=BASELINE,
            loads=(1.0,),
            environment=_ENVIRONMENT | _variables(args.way_environment),
            start_timeout_s=START_TIMEOUT_S,
        )
        async with servers(spec) as started:
            yield {one.name: one for one in started}


def _variables(words: list[str]) -> dict[str, str]:
    return dict(one.split("=", 1) for one in words)


@contextmanager
def _direct(python: Path, model: Path, threads: int, variables: dict[str, str]) -> Iterator[str]:
    """The URL of one whole vLLM server, started as Chiasm starts its own, but without videos and cache events.

    It computes in a process of its own, as vLLM has it on CPU, unless `variables` say otherwise.
    """
    flags = ["--generation-config", "vllm", "--max-num-seqs", "128", "--enable-prefix-caching"]
    flags += ["--limit-mm-per-prompt", '{"image": 16, "video": 0}']
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        environment = (
            _ENVIRONMENT | {"OMP_NUM_THREADS": str(threads), "VLLM_ENABLE_V1_MULTIPROCESSING": "1"} | variables
        )
        server = start(*flags, log_path=log, model=model, environment=environment, python=python)
        try:
            wait_ready(server)
            yield server.url
        finally:
            server.stop()


async def measured(args: argparse.Namespace, ways: Mapping[str, Server], concurrency: int) -> Pairs:
    """For each way the times of all requests, in the same order."""
    found: Pairs = {name: [] for name in ways}
    for turn in range(-NUM_WARM, args.turns):
        seed = f"{args.model} {concurrency} {turn}"
        shown = [pictures(f"{seed} {number}", args.images, args.tokens) for number in range(concurrency)]
        bodies = [body(one, TEXT.format(f"{seed} {n}"), args.output) for n, one in enumerate(shown)]
        for name in shuffled(list(ways), seed):
            sent = await send(ways[name].target, bodies, concurrency=concurrency, timeout_s=TIMEOUT_S)
            records = sent.records
            times = [_times(name, record) for record in sorted(records, key=lambda record: record.index)]
            if turn >= 0:
                found[name] += times
        print(f"{args.model}, {concurrency} at once: turn {turn + 1} of {args.turns}", flush=True)
    return found


def _times(way: str, record: Record) -> dict[str, float] | None:
    first_s = wire_ttft_s(record)
    if first_s is None:
        print(f"{way}: a request was not answered: {record.outcome}", flush=True)
        return None
    return {"ttft_s": first_s, "e2e_s": (record.end_ns - record.sent_ns) / 1e9}


def summary(found: Pairs, concurrency: int = 1) -> dict[str, Any]:
    """Medians of each way, and its times over those of vLLM itself, request by request, where both answered."""
    cells: dict[str, Any] = {}
    for way, times in found.items():
        both = [(mine, base) for mine, base in zip(times, found[BASELINE], strict=True) if mine and base]
        cell: dict[str, Any] = {"unanswered": sum(one is None for one in times)}
        cells[way] = cell
        for what in ("ttft_s", "e2e_s") if both else ():
            pairs = [(mine[what], base[what]) for mine, base in both]
            cell[what] = sorted(mine for mine, _ in pairs)[len(pairs) // 2]
            if way != BASELINE:
                cell[f"{what}_ratio"] = interval(pairs, ratio_of_medians, concurrency)
    for what in ("ttft_s", "e2e_s"):
        if ratio := cells.get("auto", {}).get(f"{what}_ratio"):
            said = verdict(f"auto's {what.removesuffix('_s')}", ratio, MOST_WORSE)
            cells["auto"].setdefault("verdicts", []).append(said)
    return cells


async def everything(args: argparse.Namespace) -> dict[str, Any]:
    """All numbers of requests at once."""
    async with running(args) as ways:
        return {str(number): summary(await measured(args, ways, number), number) for number in args.concurrency}


def main(argv: list[str]) -> None:
    """Write one result file."""
    args = parsed(argv)
    result: dict[str, Any] = {"machine": machine.describe(), "model": args.model, "turns": args.turns}
    result |= {"direct_threads": args.threads, "direct_environment": args.environment}
    result |= {"way_threads": args.way_threads, "way_environment": args.way_environment}
    result |= {"images": args.images, "tokens": args.tokens, "output": args.output}
    try:
        result["concurrency"] = asyncio.run(everything(args))
    except ChiasmError as error:
        raise SystemExit(f"Error: {error.message}") from error
    path = RESULTS / "vllm" / f"{args.name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["concurrency"], indent=1))
    print(f"written: benchmarks/results/vllm/{path.name}")
