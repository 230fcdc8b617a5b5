"""What does metadata save the worker that computes the prompt, against sending it the media themselves?

New pictures, and known ones. Prompts are not cached, so that of a known picture the preparation, or the embedding, is.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

import aiohttp

from benchmarks.epd.fleets import counters, fleets
from benchmarks.epd.requests import TEXT, body, pictures
from benchmarks.http_client import PATH
from benchmarks.sending import shuffled
from chiasm.bench.grid.servers import Server

REQUESTS = 20
IMAGES = (1, 4, 8)
WAYS = {"metadata": ("e-pd",), "raw": ("e-pd", "routing.forward=raw")}
STAGES = ("encode", "transfer", "prefill_queue", "prefill")
NO_PREFIXES = "engine.prefix_cache_bytes=0"
Row = dict[str, Any]


async def forwarding(args: argparse.Namespace) -> Row:
    """Medians of single requests in turns; CPU and counters of all requests of a kind together."""
    count = args.requests or REQUESTS
    table: list[Row] = []
    async with fleets(WAYS, NO_PREFIXES) as running, aiohttp.ClientSession() as session:
        for images in args.images or IMAGES:
            await _block(session, running, f"first {images}", images, 2, args.tokens)
            for is_known in (False, True):
                for way, row in (await _block(session, running, f"{images}", images, count, args.tokens)).items():
                    table.append({"images": images, "is_known": is_known, "way": way} | row)
    return {"table": table, "asked": count}


async def _block(
    session: aiohttp.ClientSession, running: dict[str, Server], seed: str, images: int, count: int, tokens: int
) -> dict[str, Row]:
    """So many requests to each server in turns, with the pictures of a seed: known ones the second time."""
    before = {name: (server.cpu_s(), await counters(server)) for name, server in running.items()}
    answers: dict[str, list[Row]] = {name: [] for name in running}
    for number in range(count):
        for name in shuffled(list(running), f"{seed} {number}"):
            shown, text = pictures(f"{seed} {number}", images, tokens), TEXT.format(f"{number} {time.monotonic_ns()}")
            answers[name].append(await _answered(session, running[name], shown, text))
    return {name: await _row(server, answers[name], *before[name]) for name, server in running.items()}


async def _answered(session: aiohttp.ClientSession, server: Server, shown: Sequence[str], text: str) -> Row:
    asked = json.loads(body(shown, text, 1, chiasm={"receipt": True})) | {"stream": False}
    data = json.dumps({name: value for name, value in asked.items() if name != "stream_options"}).encode()
    start_s = time.perf_counter()
    headers = {"Content-Type": "application/json"}
    async with session.post(server.target.url + PATH, data=data, headers=headers) as response:
        response.raise_for_status()
        receipt = (await response.json())["chiasm"]["receipt"]
    return {"took_s": time.perf_counter() - start_s, "receipt": receipt}


async def _row(server: Server, answers: Sequence[Row], cpu_before: Row, counted_before: Row) -> Row:
    counted, cpu = await counters(server), server.cpu_s()
    row: Row = {"took_s": statistics.median(one["took_s"] for one in answers)}
    for stage in STAGES:
        row[f"{stage}_s"] = statistics.median(_busy_s(one["receipt"]["spans"], stage) for one in answers)
        critical = [one["receipt"]["stages_s"].get(stage, 0.0) for one in answers]
        row[f"critical_{stage}_s"] = statistics.median(critical)
    row |= {f"cpu {name}": (used - cpu_before.get(name, 0.0)) / len(answers) for name, used in cpu.items()}
    for name in ("decoded", "encoded"):
        row[name] = (counted[f"{name}_items_total"] - counted_before[f"{name}_items_total"]) / len(answers)
    return row


def _busy_s(spans: Sequence[Row], stage: str) -> float:
    """Time in which a stage was at work, however many at once."""
    busy_s, end_s = 0.0, 0.0
    for span in sorted((one for one in spans if one["stage"] == stage), key=lambda one: one["start_s"]):
        busy_s += max(0.0, span["end_s"] - max(span["start_s"], end_s))
        end_s = max(end_s, span["end_s"])
    return busy_s
