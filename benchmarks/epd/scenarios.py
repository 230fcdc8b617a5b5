"""Three questions beside the grid: does text wait for pictures, is a second question cheap, what does metadata save."""

import argparse
import asyncio
import json
import random
import statistics
import time
import urllib.request
from collections.abc import Sequence
from typing import Any

from benchmarks.epd.cells import SIDE_OF_TOKENS, body, pictures
from benchmarks.epd.fleets import Server, servers
from benchmarks.epd.verdicts import interval, ratio_of_medians, ratio_of_p95
from benchmarks.http_client import PATH
from benchmarks.open_loop import capacity_per_s, poisson_schedule, run_schedule

TOPOLOGIES = ("agg", "e-pd", "auto")
TIMEOUT_S = 120.0
MOST_TEXT_DELAY = 1.15
MOST_REPEAT_DELAY = 1.3
FORWARDINGS = {"metadata": "e-pd", "raw": "e-pd,routing.forward=raw"}
STAGES = ("encode", "transfer", "prefill_queue", "prefill")
TEXT = "Question {}: what is there to see in a picture that shows some shapes of several colours on a light ground?"
NO_CACHES = ("engine.prefix_cache_bytes=0", "engine.embedding_cache_bytes=0")
Row = dict[str, Any]


def mixed(args: argparse.Namespace) -> Row:
    """Texts alone, and the same texts at the same times beside as many requests with a picture. No caches."""
    with servers(TOPOLOGIES, *NO_CACHES) as running:
        each = args.requests // 2
        both = [*_texts(args, "capacity", each), *_shown(args, "capacity", each)]
        for server in running.values():  # so that all have met what is coming
            asyncio.run(capacity_per_s(server.address, both, 4))
        per_s = asyncio.run(capacity_per_s(running["agg"].address, both, 4))
        rate = args.loads[0] * per_s / 2
        pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in running}
        for seed in range(args.seeds):
            for name in random.sample(list(running), len(running)):
                pairs[name] += _text_pairs(args, running[name], seed, rate)
    ratios = {name: interval(found, ratio_of_p95) for name, found in pairs.items()}
    promise = "95th percentile of a text's first token"
    return {
        "scenario": "mixed",
        "rate_per_s": rate,
        "asked": args.seeds * args.requests,
        "ratios": ratios,
        "verdicts": [_verdict(f"{name}: {promise}", ratio, MOST_TEXT_DELAY) for name, ratio in ratios.items()],
    }


def _text_pairs(args: argparse.Namespace, server: Server, seed: int, rate: float) -> list[tuple[float, float]]:
    """First tokens of texts beside pictures, and alone; only those that were answered both times."""
    texts, shown = _texts(args, f"{seed}", args.requests), _shown(args, f"{seed}", args.requests)
    times = poisson_schedule(len(texts), rate, f"texts {seed}")
    others = poisson_schedule(len(shown), rate, f"pictures {seed}")
    merged = sorted(
        [
            *zip(times, texts, range(len(texts)), strict=True),
            *((at_s, one, -1) for at_s, one in zip(others, shown, strict=True)),
        ],
        key=lambda one: one[0],
    )
    alone = asyncio.run(run_schedule(server.address, texts, times, TIMEOUT_S))
    bodies, schedule = [one for _, one, _ in merged], [at_s for at_s, _, _ in merged]
    answers = asyncio.run(run_schedule(server.address, bodies, schedule, TIMEOUT_S))
    beside = {number: one for one, (_, _, number) in zip(answers, merged, strict=True) if number >= 0}
    good = [(beside[one.index], one) for one in alone if not one.error and not beside[one.index].error]
    return [(ours.first_token_s, theirs.first_token_s) for ours, theirs in good]


def repeat(args: argparse.Namespace) -> Row:
    """A second question about a picture, and a text of the same length, one at a time and in turn."""
    found: Row = {"scenario": "repeat", "ratios": {}, "encodes": {}, "decodes": {}, "verdicts": []}
    with servers(TOPOLOGIES) as running:
        for name, server in running.items():
            pairs, counted = [], {"encoded_items_total": 0.0, "decoded_items_total": 0.0}
            for number in range(args.requests + 1):
                (picture,) = pictures(f"repeat {name} {number}", 1, SIDE_OF_TOKENS[args.tokens[0]])
                _first_token_s(server, body([picture], TEXT.format(f"a{number}"), 1, is_streamed=False))
                before = server.counters()
                again = _first_token_s(server, body([picture], TEXT.format(f"b{number}"), 1, is_streamed=False))
                after = server.counters()
                text = _first_token_s(server, body([], TEXT.format(f"c{number}"), 1, is_streamed=False))
                if number:  # the first is for everything that happens once
                    pairs.append((again, text))
                    for counter in counted:
                        counted[counter] += after[counter] - before[counter]
            found["ratios"][name] = interval(pairs, ratio_of_medians)
            found["encodes"][name], found["decodes"][name] = counted.values()
            promise = f"{name}: first token of another question"
            found["verdicts"].append(_verdict(promise, found["ratios"][name], MOST_REPEAT_DELAY))
    return found


def forwarding(args: argparse.Namespace) -> Row:
    """Metadata against the media themselves, to the worker that computes the prompt: new pictures, and known ones.

    Prompts are not cached, so that a known picture is one whose preparation, or embedding, is.
    """
    rows: list[Row] = []
    with servers(tuple(FORWARDINGS.values()), NO_CACHES[0]) as running:
        for images in [count for count in args.images if count]:
            for number in range(args.requests + 1):
                for way in random.sample(list(FORWARDINGS), len(FORWARDINGS)):
                    shown = pictures(f"{way} {images} {number}", images, SIDE_OF_TOKENS[args.tokens[0]])
                    for is_known in (False, True):
                        row = _forwarded(running[FORWARDINGS[way]], shown, TEXT.format(f"{number} {is_known}"))
                        if number:
                            rows.append({"way": way, "images": images, "is_known": is_known} | row)
    return {"scenario": "forwarding", "table": _forwarding_table(rows), "rows": rows}


def _forwarded(server: Server, shown: Sequence[str], text: str) -> Row:
    cpu_before, counters_before = server.cpu_s(), server.counters()
    before_s = time.perf_counter()
    receipt = _receipt(server, body(shown, text, 1, is_streamed=False, chiasm={"receipt": True}))
    took_s = time.perf_counter() - before_s
    cpu, counters = server.cpu_s(), server.counters()
    busy = {stage: _busy_s(receipt["spans"], stage) for stage in STAGES}
    return {
        "took_s": took_s,
        "critical_s": receipt["stages_s"],
        "busy_s": busy,
        "cpu_s": {name: cpu[name] - cpu_before.get(name, 0.0) for name in cpu},
        "decoded": counters["decoded_items_total"] - counters_before["decoded_items_total"],
        "encoded": counters["encoded_items_total"] - counters_before["encoded_items_total"],
    }


def _forwarding_table(rows: Sequence[Row]) -> list[Row]:
    kinds = sorted({(row["images"], row["is_known"], row["way"]) for row in rows})
    table = []
    for images, is_known, way in kinds:
        here = [one for one in rows if (one["images"], one["is_known"], one["way"]) == (images, is_known, way)]
        entry: Row = {"images": images, "is_known": is_known, "way": way}
        entry["took_s"] = statistics.median(one["took_s"] for one in here)
        for stage in STAGES:
            entry[f"{stage}_s"] = statistics.median(one["busy_s"][stage] for one in here)
            entry[f"critical_{stage}_s"] = statistics.median(one["critical_s"].get(stage, 0.0) for one in here)
        for name in here[0]["cpu_s"]:
            entry[f"cpu {name}"] = statistics.fmean(one["cpu_s"][name] for one in here)
        entry["decoded"], entry["encoded"] = (
            sum(one[what] for one in here) / len(here) for what in ("decoded", "encoded")
        )
        table.append(entry)
    return table


def _texts(args: argparse.Namespace, seed: str, count: int) -> list[bytes]:
    return [body([], TEXT.format(f"{seed} {number}"), args.outputs[0]) for number in range(count)]


def _shown(args: argparse.Namespace, seed: str, count: int) -> list[bytes]:
    side = SIDE_OF_TOKENS[args.tokens[0]]
    return [
        body(pictures(f"mixed {seed} {number}", 1, side), TEXT.format(f"{seed} {number}"), args.outputs[0])
        for number in range(count)
    ]


def _post(server: Server, data: bytes) -> Row:
    asked = urllib.request.Request(server.address + PATH, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as response:
        return json.loads(response.read())


def _first_token_s(server: Server, data: bytes) -> float:
    """Of an answer of one token: the whole of it."""
    start_s = time.perf_counter()
    _post(server, data)
    return time.perf_counter() - start_s


def _receipt(server: Server, data: bytes) -> Row:
    return _post(server, data)["chiasm"]["receipt"]


def _busy_s(spans: Sequence[Row], stage: str) -> float:
    """Time in which a stage was at work, however many at once."""
    busy_s, end_s = 0.0, 0.0
    for span in sorted((one for one in spans if one["stage"] == stage), key=lambda one: one["start_s"]):
        busy_s += max(0.0, span["end_s"] - max(span["start_s"], end_s))
        end_s = max(end_s, span["end_s"])
    return busy_s


def _verdict(what: str, ratio: dict[str, float], limit: float) -> str:
    outcome = "kept" if ratio["high"] <= limit else "broken" if ratio["low"] > limit else "open"
    return (
        f"{what} at most {limit:g} times: {outcome} ({ratio['value']:.2f}, {ratio['low']:.2f} to {ratio['high']:.2f})"
    )
