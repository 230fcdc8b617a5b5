"""One endpoint from raw data to ranked answer, against two hops: services around a fixed-padding model server.

`--what text`: a cross-encoder with MiniLM's weights, 20 candidates a call. `--what pictures`: a CLIP of fixed random
weights, JPEGs of 3 to 4 MB that nobody has seen, a few a call, and the single endpoint twice: as it is, and with
`media.preparation = "fast"`. All paths run all the time, take turns in a round and must find the same scores, the fast
one nearly; ratios are taken within a round. Callers are a closed loop in this process. CPU time of a path is that of
its servers' process groups, their callers not counted: the figure that a busy machine disturbs least.
"""

import argparse
import asyncio
import base64
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks import machine
from benchmarks.modules import process
from benchmarks.pooling import NUM_CANDIDATES, build_model, calls
from benchmarks.ratios import median_ratio

RESULTS = Path(__file__).parent / "results" / "pooling"
LEGACY, SINGLE, FAST = "two hops", "single endpoint", "single endpoint, fast"
MAX_DIFFERENCE = {SINGLE: 1e-4, FAST: 2e-2}
"""Of scores, to the two hops'."""
_TIMEOUT = aiohttp.ClientTimeout(300)
_LEGACY = "benchmarks.legacy"
Ways = dict[str, tuple[str, Callable[[dict[str, Any]], Any], list[int]]]
"""Name -> URL, what makes the body of a call, and the process groups of the servers."""


def build_clip(directory: Path) -> Path:
    """Write a dual encoder of six layers over 224 pixels, and MiniLM-sized texts."""
    import torch  # noqa: PLC0415 - only this part of the driver needs it
    from transformers import AutoTokenizer, CLIPConfig, CLIPModel  # noqa: PLC0415
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil  # noqa: PLC0415

    from tests.numeric.minilm import directory as minilm  # noqa: PLC0415

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(minilm())
    layers = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536}
    text = {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.sep_token_id,
        "bos_token_id": tokenizer.cls_token_id,
    }
    vision = {"image_size": 224, "patch_size": 32}
    config = CLIPConfig(text_config=text | layers, vision_config=vision | layers, projection_dim=256)
    CLIPModel(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    CLIPImageProcessorPil().save_pretrained(directory)
    return directory


def photographs(count: int) -> list[bytes]:
    """JPEGs of 3 to 4 MB and 12 megapixels: soft shapes and a sensor's noise."""
    import numpy as np  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415

    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        soft = Image.fromarray(rng.integers(0, 255, (12, 16, 3), np.uint8)).resize(
            (4000, 3000), Image.Resampling.BICUBIC
        )
        noisy = np.clip(np.asarray(soft, np.int16) + rng.normal(0, 8, (3000, 4000, 1)).astype(np.int16), 0, 255)
        file = BytesIO()
        Image.fromarray(noisy.astype(np.uint8)).save(file, "JPEG", quality=89)
        found.append(file.getvalue())
    return found


def unseen(jpeg: bytes, number: int) -> str:
    """The same picture as a data URL with other bytes: a comment behind the first marker."""
    note = number.to_bytes(8, "big")
    changed = jpeg[:2] + b"\xff\xfe" + (len(note) + 2).to_bytes(2, "big") + note + jpeg[2:]
    return "data:image/jpeg;base64," + base64.b64encode(changed).decode()


def text_calls(seed: str, count: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Queries with candidates, of a realistic mix of lengths."""
    return [{"query": one["query"], "candidates": one["documents"]} for one in calls(seed, count, args.median_words)]


def picture_calls(pictures: list[bytes]) -> Callable[[str, int, argparse.Namespace], list[dict[str, Any]]]:
    """Calls with pictures whose bytes are new every time."""

    def make(seed: str, count: int, args: argparse.Namespace) -> list[dict[str, Any]]:
        rng = random.Random(seed)
        return [
            {
                "query": "a photograph of a house by the sea",
                "candidates": [unseen(rng.choice(pictures), rng.getrandbits(63)) for _ in range(args.pictures)],
            }
            for _ in range(count)
        ]

    return make


@contextmanager
def running(*command: str, threads: int) -> Iterator[tuple[str, int]]:
    """A server's address, once it has said it, and its process group."""
    with process(*command, threads=threads) as server:
        text = ""
        while line := server.stdout.readline():
            text += line
            if line.rstrip().endswith("}"):
                yield str(json.loads(text)["address"]), server.pid
                return
        sys.exit(f"{command[0]} did not start")


def paths(args: argparse.Namespace, model: Path, stack: ExitStack) -> Ways:
    """Name -> (URL, body of a call) of both, started."""
    threads = args.threads
    server = running(f"{_LEGACY}.model_server", args.what, str(model), str(threads), threads=threads)
    hop, hop_group = stack.enter_context(server)
    front, front_group = stack.enter_context(running(f"{_LEGACY}.front", args.what, str(model), hop, threads=1))
    processor = "reranker" if args.what == "text" else "image_ranker"
    settings = [
        f"--set=engine.threads={threads}",
        "--set=engine.dtype=float32",
        f'--set=pooling.io_processors=["{processor}"]',
        "--set=gateway.max_body_bytes=268435456",
    ]
    command = ("chiasm", "serve", str(model), "--json", "--port", "0", "--log-level", "warning", *settings)
    ways: Ways = {LEGACY: (f"{front}/rank", lambda data: data, [hop_group, front_group])}
    more = {SINGLE: ()} if args.what == "text" else {SINGLE: (), FAST: ("--set=media.preparation=fast",)}
    for name, extra in more.items():
        single, group = stack.enter_context(running(*command, *extra, threads=threads))
        ways[name] = (f"{single}/pooling", lambda data: {"task": "plugin", "data": data}, [group])
    return ways


def cpu_s(groups: list[int]) -> float:
    """CPU time of process groups so far, in steps of 10 ms."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = stat.read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15])) if int(fields[2]) in groups else 0
    return ticks / os.sysconf("SC_CLK_TCK")


async def turn(url: str, bodies: list[bytes], callers: int) -> dict[str, Any]:
    """All calls by so many callers, each asking again as soon as it has its answer."""
    latencies: list[float] = [0.0] * len(bodies)
    answers: list[Any] = [None] * len(bodies)
    left = iter(range(len(bodies)))
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=_TIMEOUT, connector=connector) as session:

        async def caller() -> None:
            for number in left:
                started = time.perf_counter()
                headers = {"content-type": "application/json"}
                async with session.post(url, data=bodies[number], headers=headers) as answer:
                    body = await answer.json()
                    if answer.status != 200:
                        raise SystemExit(f"{url} answered {answer.status}: {str(body)[:300]}")
                latencies[number] = time.perf_counter() - started
                answers[number] = {one["index"]: one["score"] for one in body["data"]["results"]}

        started = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(callers)))
        wall_s = time.perf_counter() - started
    ordered = sorted(latencies)
    return {
        "calls_per_s": len(bodies) / wall_s,
        "p50_s": ordered[len(ordered) // 2],
        "p95_s": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        "answers": answers,
    }


def run_rounds(
    ways: Ways, make: Callable[[str, int, argparse.Namespace], list[dict[str, Any]]], args: argparse.Namespace
) -> list[dict[str, Any]]:
    """All paths do every cell in every round, in an order drawn anew; round 0 warms up."""
    rows: list[dict[str, Any]] = []
    rng = random.Random(1)
    for number in range(args.rounds + 1):
        for callers in args.callers:
            count = args.calls * (1 if callers == 1 else 3) if number else 2
            work = make(f"{number}-{callers}", count, args)
            found: dict[str, dict[str, Any]] = {}
            for name in rng.sample(list(ways), len(ways)):
                url, body, groups = ways[name]
                bodies, before_s = [json.dumps(body(one)).encode() for one in work], cpu_s(groups)
                found[name] = asyncio.run(turn(url, bodies, callers))
                found[name]["cpu_s_per_call"] = (cpu_s(groups) - before_s) / len(work)
            answers = {name: one.pop("answers") for name, one in found.items()}
            for name in answers.keys() - {LEGACY}:
                moved = _check_scores(answers[name], answers[LEGACY], MAX_DIFFERENCE[name])
                found[name]["largest_difference"] = moved
            if number:
                rows += [{"round": number, "callers": callers, "path": name, **row} for name, row in found.items()]
        print(f"round {number} of {args.rounds}", file=sys.stderr)
    return rows


def _check_scores(one: list[Any], other: list[Any], most: float) -> float:
    largest = 0.0
    for mine, theirs in zip(one, other, strict=True):
        differences = [abs(mine[index] - theirs[index]) for index in mine] if mine.keys() == theirs.keys() else [1e9]
        largest = max(largest, *differences)
        if largest > most:
            raise SystemExit(f"The paths differ: {mine} and {theirs}")
    return largest


def summarise(rows: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    """Medians of all paths; of each but the two hops, throughput and latencies as ratios to theirs."""
    return {f"{callers} callers": _cell([row for row in rows if row["callers"] == callers]) for callers in args.callers}


def _cell(rows: list[dict[str, Any]]) -> dict[str, Any]:
    figures = ("calls_per_s", "p50_s", "p95_s", "cpu_s_per_call")
    names = list(dict.fromkeys(row["path"] for row in rows))
    found = {name: {f: [row[f] for row in rows if row["path"] == name] for f in figures} for name in names}
    theirs = found[LEGACY]
    compared = {
        name: {
            "throughput": median_ratio(ours["calls_per_s"], theirs["calls_per_s"]),
            "p50": median_ratio(ours["p50_s"], theirs["p50_s"]),
            "p95": median_ratio(ours["p95_s"], theirs["p95_s"]),
            "by_cpu": median_ratio(theirs["cpu_s_per_call"], ours["cpu_s_per_call"]),
            "largest_difference": max(row["largest_difference"] for row in rows if row["path"] == name),
        }
        for name, ours in found.items()
        if name != LEGACY
    }
    fast = {"fast": compared[FAST]} if FAST in compared else {}
    medians = {name: {f: sorted(v)[len(v) // 2] for f, v in by.items()} for name, by in found.items()}
    return {"medians": medians, **compared[SINGLE], **fast}


def print_summary(summary: dict[str, Any]) -> None:
    for cell, entry in summary.items():
        print(cell)
        for name, figures in entry["medians"].items():
            print(
                f"  {name:21} {figures['calls_per_s']:8.2f} calls/s, p50 {1e3 * figures['p50_s']:.0f} ms, "
                f"p95 {1e3 * figures['p95_s']:.0f} ms, {1e3 * figures['cpu_s_per_call']:.0f} CPU ms a call"
            )
        for name, compared in ((SINGLE, entry), (FAST, entry.get("fast"))):
            if compared is not None:
                print(
                    f"  {name}: throughput {compared['throughput']['median']:.2f}x, p50 down "
                    f"{100 * (1 - compared['p50']['median']):.0f} %, by CPU {compared['by_cpu']['median']:.2f}x, "
                    f"scores {compared['largest_difference']:.1g} off"
                )


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks pooling_paths", description=__doc__)
    parser.add_argument("--what", choices=("text", "pictures"), default="text")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--calls", type=int, default=8, help="calls in a turn; three times as many with several callers"
    )
    parser.add_argument("--callers", type=lambda text: [int(n) for n in text.split(",")], default=[1, 16])
    parser.add_argument("--median-words", type=float, default=30.0, help="two to three tokens each")
    parser.add_argument("--pictures", type=int, default=4, help="a call")
    parser.add_argument("--pause-pid-file", type=Path, help="stop the process it names while measuring")
    parser.add_argument("--name", help="end of the result file's name")
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    """Measure and write one result file."""
    args = arguments(argv)
    described = machine.describe()
    with ExitStack() as stack:
        stack.enter_context(machine.paused(args.pause_pid_file))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if args.what == "text":
            model, make = build_model(folder / "cross-encoder"), text_calls
        else:
            model, make = build_clip(folder / "clip"), picture_calls(photographs(6))
        rows = run_rounds(paths(args, model, stack), make, args)
    summary = summarise(rows, args)
    print_summary(summary)
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{args.name or f'paths-{args.what}'}.json"
    result = {
        "machine": described,
        "what": args.what,
        "threads": args.threads,
        "items_a_call": NUM_CANDIDATES if args.what == "text" else args.pictures,
        "summary": summary,
        "rows": rows,
    }
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: benchmarks/results/pooling/{path.name}")
