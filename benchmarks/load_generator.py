"""The load generator against a server of known delays: is it right, and what does a request cost it?

Accuracy: TTFT and TPOT as reported, beside the delays that the server was told. Allowed are 1 % + 0.3 ms. A stall of
the server must be in the tail. Sustained: is the client on time at the rate that is aimed at? Cost: its CPU for each
request and for each megabyte of bodies, which is what bounds it when it has a core for itself; and the same load from
aiohttp's client.
"""

import argparse
import asyncio
import itertools
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks import machine
from chiasm.bench.cell import Bench, LoadSpec, Watcher
from chiasm.bench.client.results import read_records
from chiasm.bench.metrics.tpot import tpot_s
from chiasm.bench.metrics.ttft import ttft_s, wire_ttft_s
from chiasm.bench.statistics.distribution import distribution
from chiasm.bench.target import parse_target
from chiasm.bench.workload.bodies import BodyMaker, Dialect
from chiasm.bench.workload.classes import PATHS, RequestClass

RESULTS = Path(__file__).parent / "results"
ALLOWED_SHARE, ALLOWED_MS = 0.01, 0.3
TARGET_REQUESTS_PER_S, TARGET_MB_PER_S = 2000, 300
PLAIN = Dialect(model="delay", has_exact_length=False, has_receipts=False)
# Of each cell: TTFT, TPOT, and how many tokens.
DELAYS_MS = ((20.0, 2.0, 16), (100.0, 10.0, 16), (400.0, 25.0, 8))
TEXT_TOKENS, PICTURE_SIDE = 64, 1024


@contextmanager
def delay_server(ttft_ms: float, tpot_ms: float, tokens: int, stall: tuple[float, float] = (0, 0)) -> Iterator[str]:
    """A server process; its address."""
    command = [sys.executable, "-m", "benchmarks.delay_server", "--ttft-ms", str(ttft_ms), "--tpot-ms", str(tpot_ms)]
    command += ["--tokens", str(tokens), "--stall-at-s", str(stall[0]), "--stall-s", str(stall[1])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def run_cell(address: str, spec: LoadSpec, *, rate_per_s: float = 0, concurrency: int = 0) -> tuple[Any, list[Any]]:
    """One cell: its summary and its measured records."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), parse_target(address), PLAIN, spec, Watcher())
        cell = bench.peak("cell", concurrency) if concurrency else bench.open_loop("cell", rate_per_s, "0")
        summary = asyncio.run(cell)
        records = read_records(Path(folder) / "cell" / "records.jsonl")
    return summary, [record for record in records if record.phase == "measured"]


def accuracy(count: int, rate_per_s: float) -> list[dict[str, Any]]:
    """Reported against told, and whether the difference is allowed."""
    rows = []
    for ttft_ms, tpot_ms, tokens in DELAYS_MS:
        classes = (RequestClass(text_tokens=TEXT_TOKENS, output_tokens=tokens),)
        spec = LoadSpec(classes=classes, pattern="constant", num_requests=count, num_processes=1)
        with delay_server(ttft_ms, tpot_ms, tokens) as address:
            summary, records = run_cell(address, spec, rate_per_s=rate_per_s)
        spreads = {"ttft": (ttft_ms, ttft_s), "wire_ttft": (ttft_ms, wire_ttft_s), "tpot": (tpot_ms, tpot_s)}
        row: dict[str, Any] = {"ttft_ms": ttft_ms, "tpot_ms": tpot_ms, "lag_p99_ms": summary.client.send_lag_p99_ms}
        for name, (told_ms, metric) in spreads.items():
            spread = distribution(map(metric, records))
            assert spread is not None
            row[name] = {
                "told_ms": told_ms,
                "p50_ms": spread.p50_ms,
                "mean_ms": spread.mean_ms,
                "is_allowed": abs(spread.p50_ms - told_ms) <= ALLOWED_SHARE * told_ms + ALLOWED_MS,
            }
        rows.append(row)
    return rows


def stalled(rate_per_s: float, stall_s: float) -> dict[str, float]:
    """How many requests waited for the stall's end, against how many came in it."""
    spec = LoadSpec(
        classes=(RequestClass(text_tokens=TEXT_TOKENS, output_tokens=2),),
        pattern="constant",
        num_requests=int(rate_per_s * 3 * stall_s),
        num_warmup=0,
        num_cooldown=0,
        num_processes=1,
    )
    with delay_server(5, 1, 2, (stall_s, stall_s)) as address:
        _, records = run_cell(address, spec, rate_per_s=rate_per_s)
    waits = [wait for wait in map(ttft_s, records) if wait is not None]
    return {
        "came_in_the_stall": rate_per_s * stall_s,
        "waited_more_than_50_ms": sum(wait > 0.05 for wait in waits),
        "longest_s": max(waits),
        "stall_s": stall_s,
    }


def sustained(rate_per_s: float, seconds: float) -> dict[str, Any]:
    """An open loop of texts at the rate that is aimed at: is the client on time, and far from its limit?"""
    spec = LoadSpec(
        classes=(RequestClass(text_tokens=TEXT_TOKENS, output_tokens=8),),
        num_requests=int(rate_per_s * seconds),
        num_processes=1,
    )
    with delay_server(1, 0, 8) as address:
        summary, _ = run_cell(address, spec, rate_per_s=rate_per_s)
    client = summary.client
    return {
        "asked_per_s": rate_per_s,
        "served_per_s": summary.throughput.requests_per_s,
        "client_cpu_share": client.cpu_share,
        "lag_p99_ms": client.send_lag_p99_ms,
        "problems": list(client.problems),
        "outcomes": summary.total.outcomes,
    }


def cost(count: int, concurrency: int, processes: int) -> dict[str, Any]:
    """Peak rates with the server beside it, and the client's CPU, which says what a core could do."""
    found: dict[str, Any] = {}
    cells = {
        "text, 8 tokens": RequestClass(text_tokens=TEXT_TOKENS, output_tokens=8),
        "embeddings": RequestClass(kind="embeddings", text_tokens=TEXT_TOKENS),
        "4 pictures": RequestClass(
            images=4, image_width=PICTURE_SIDE, image_height=PICTURE_SIDE, image_reuse=0.98, output_tokens=8
        ),
    }
    for name, kind in cells.items():
        number = max(1, count // 30) if kind.images else count
        spec = LoadSpec(classes=(kind,), num_requests=number, num_processes=processes)
        with delay_server(0, 0, 8) as address:
            summary, records = run_cell(address, spec, concurrency=concurrency)
        client, rates = summary.client, summary.throughput
        mb = sum(record.num_body_bytes for record in records) / 1e6 / len(records)
        found[name] = {
            "requests_per_s": rates.requests_per_s,
            "body_mb_per_s": rates.body_mb_per_s,
            "client_cpu_ms_per_request": client.cpu_ms_per_request,
            "requests_per_s_and_core": 1e3 / client.cpu_ms_per_request,
            "body_mb_per_s_and_core": 1e3 / client.cpu_ms_per_request * mb,
            "outcomes": summary.total.outcomes,
        }
    return found


def aiohttp_cost(count: int, rate_per_s: float) -> float:
    """CPU milliseconds for a request of text with aiohttp's client, at a rate that is far from its limit."""
    kind = RequestClass(text_tokens=TEXT_TOKENS, output_tokens=8)
    maker = BodyMaker((kind,), PLAIN, "0")
    bodies = [maker.make(kind, index) for index in range(count)]
    with delay_server(1, 0, 8) as address:
        before = resource.getrusage(resource.RUSAGE_SELF)
        asyncio.run(_with_aiohttp(address, bodies, 1 / rate_per_s))
        after = resource.getrusage(resource.RUSAGE_SELF)
    return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / count


async def _with_aiohttp(address: str, bodies: list[bytes], gap_s: float) -> None:
    """Send bodies at even times and look for text in what comes back."""
    path, headers = f"{address}{PATHS['chat']}", {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        start_s = time.perf_counter()

        async def one(number: int, body: bytes) -> int:
            await asyncio.sleep(max(0.0, start_s + number * gap_s - time.perf_counter()))
            async with session.post(path, data=body, headers=headers) as response:
                lines = [line[6:] async for line in response.content if line.startswith(b"data: {")]
            choices = [json.loads(line)["choices"] for line in lines]
            return sum(bool(one and one[0].get("delta", {}).get("content")) for one in choices)

        await asyncio.gather(*itertools.starmap(one, enumerate(bodies)))


def own_cost(count: int, rate_per_s: float) -> float:
    """The same of this load generator."""
    spec = LoadSpec(
        classes=(RequestClass(text_tokens=TEXT_TOKENS, output_tokens=8),),
        pattern="constant",
        num_requests=count,
        num_processes=1,
    )
    with delay_server(1, 0, 8) as address:
        summary, _ = run_cell(address, spec, rate_per_s=rate_per_s)
    return float(summary.client.cpu_ms_per_request)


def main(argv: list[str]) -> None:
    """Measure and write one result file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks load_generator", description=__doc__)
    parser.add_argument("--requests", type=int, default=400, help="per accuracy cell")
    parser.add_argument("--rate", type=float, default=20.0, help="of accuracy cells, per second")
    parser.add_argument("--peak-requests", type=int, default=20_000)
    parser.add_argument("--sustained-seconds", type=float, default=4.0, help="of the open loop at the aimed rate")
    parser.add_argument("--processes", type=int, default=1, help="client processes of peak cells")
    parser.add_argument("--name", default="load-generator", help="end of the result file's name")
    args = parser.parse_args(argv)
    result = {
        "machine": machine.describe(),
        "allowed": f"{ALLOWED_SHARE:.0%} + {ALLOWED_MS} ms, of the median",
        "targets": {"requests_per_s": TARGET_REQUESTS_PER_S, "body_mb_per_s": TARGET_MB_PER_S},
        "accuracy": accuracy(args.requests, args.rate),
        "stall": stalled(50, 2.0),
        "sustained": sustained(TARGET_REQUESTS_PER_S, args.sustained_seconds),
        "cost": cost(args.peak_requests, 64, args.processes),
        "cpu_ms_per_request": {"chiasm bench": own_cost(2000, 400), "aiohttp": aiohttp_cost(2000, 400)},
    }
    print(json.dumps(result, indent=1))
    path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{args.name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: benchmarks/results/{path.name}")
