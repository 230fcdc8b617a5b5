"""Chiasm's embedded engine against transformers and vLLM: throughput, a realistic mix, time to first token.

All engines are loaded once and take turns in every round; ratios are taken within a round.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import machine, models, workloads
from benchmarks.peer_process import PeerError, PeerProcess
from benchmarks.ratios import median_ratio

RESULTS = Path(__file__).parent / "results"
OURS = "chiasm"
BATCHES = (1, 4, 16)
Measure = Callable[[PeerProcess, str], dict[str, float]]


def peer_commands(vllm_python: str | None) -> dict[str, list[str]]:
    """How each peer's process is started."""
    commands = {
        OURS: [sys.executable, "-m", "benchmarks.peers.chiasm_llm"],
        "generate": [sys.executable, "-m", "benchmarks.peers.hf_generate"],
        "hf_batching": [sys.executable, "-m", "benchmarks.peers.hf_batching"],
    }
    if vllm_python:
        commands["vllm"] = [vllm_python, "-m", "benchmarks.peers.vllm_cpu"]
        commands["vllm_compiled"] = [*commands["vllm"], "--compiled"]
    return commands


def decode(batch: int, max_token: int) -> Measure:
    """Output tokens per second: decode alone (a long run less a one-token run) and the whole long run."""

    def measure(peer: PeerProcess, seed: str) -> dict[str, float]:
        first = peer.ask(op="tokens", prompts=workloads.prompts(seed + "a", batch, max_token), num_tokens=1)
        prompts = workloads.prompts(seed + "b", batch, max_token)
        run = peer.ask(op="tokens", prompts=prompts, num_tokens=workloads.NEW_TOKENS)
        if any(len(output) != workloads.NEW_TOKENS for output in run["outputs"]):
            raise PeerError(f"{peer.name} returned {[len(output) for output in run['outputs']]} tokens")
        decoded = batch * (workloads.NEW_TOKENS - 1)
        return {
            "decode_tokens_per_s": decoded / max(run["wall_s"] - first["wall_s"], 1e-9),
            "output_tokens_per_s": batch * workloads.NEW_TOKENS / run["wall_s"],
            "prefill_s": first["wall_s"],
            "cpu_s": run["cpu_s"],
        }

    return measure


def mix(max_token: int, requests_per_s: float) -> Measure:
    """Useful output tokens per second of requests with realistic lengths and arrivals."""

    def measure(peer: PeerProcess, seed: str) -> dict[str, float]:
        requests = workloads.mix(seed, max_token, requests_per_s)
        run = peer.ask(op="mix", requests=requests)
        waits = sorted(done - request["at_s"] for done, request in zip(run["done_s"], requests, strict=True))
        return {
            "output_tokens_per_s": sum(r["num_tokens"] for r in requests) / max(run["done_s"]),
            "median_request_s": waits[len(waits) // 2],
            "cpu_s": run["cpu_s"],
        }

    return measure


def first_token(folder: Path) -> Measure:
    """Time from an encoded 448 x 448 picture nobody has seen to the first token."""

    def measure(peer: PeerProcess, seed: str) -> dict[str, float]:
        walls = []
        for number in range(3):
            path = folder / "picture.png"
            path.write_bytes(workloads.picture(f"{seed}{peer.name}{number}"))
            walls.append(peer.ask(op="picture", path=str(path), question=workloads.QUESTION)["wall_s"])
        return {"first_token_s": min(walls), "speed_per_s": 1 / min(walls)}

    return measure


def cells(model: str, wanted: set[str], folder: Path) -> dict[str, tuple[Measure, str]]:
    """Name -> how to measure, and which figure the ratio is of (larger is better)."""
    limit = models.MAX_TOKEN[model]
    found: dict[str, tuple[Measure, str]] = {}
    if "decode" in wanted:
        found |= {f"decode {batch}": (decode(batch, limit), "decode_tokens_per_s") for batch in BATCHES}
    if "mix" in wanted:
        found["mix"] = (mix(limit, models.REQUESTS_PER_S[model]), "output_tokens_per_s")
    if "picture" in wanted and model == "tiny":
        found["first token"] = (first_token(folder), "speed_per_s")
    return found


def run_rounds(peers: list[PeerProcess], todo: dict[str, tuple[Measure, str]], num_rounds: int, tag: str) -> list[dict]:
    """Round 0 warms up and is not kept. A peer that cannot do a cell is left out of it; Ctrl+C keeps whole rounds."""
    rows: list[dict[str, Any]] = []
    broken: set[tuple[str, str]] = set()
    for number in range(num_rounds + 1):
        try:
            found = run_round(peers, todo, f"{tag}{number}", broken)
        except KeyboardInterrupt:
            print(f"  stopped after {len({row['round'] for row in rows})} rounds", file=sys.stderr)
            break
        rows += [{"round": number, **row} for row in found if number]
        print(f"  round {number}/{num_rounds}", file=sys.stderr)
    return [row for row in rows if (row["peer"], row["cell"]) not in broken]


def run_round(
    peers: list[PeerProcess], todo: dict[str, tuple[Measure, str]], tag: str, broken: set[tuple[str, str]]
) -> list[dict[str, Any]]:
    """Every peer does every cell once, in an order drawn anew for each; adds to `broken`."""
    rows: list[dict[str, Any]] = []
    rng = random.Random(tag)
    for cell, (measure, _) in todo.items():
        for peer in rng.sample(peers, len(peers)):
            if (peer.name, cell) in broken:
                continue
            try:
                rows.append({"cell": cell, "peer": peer.name, **measure(peer, f"{tag}{cell}")})
            except PeerError as error:
                print(f"  {peer.name} leaves {cell}: {str(error)[:300]}", file=sys.stderr)
                broken.add((peer.name, cell))
    return rows


def summarise(rows: list[dict], todo: dict[str, tuple[Measure, str]]) -> dict[str, dict[str, Any]]:
    """Cell -> median figure of each peer and the ratio of ours to each other's."""
    summary: dict[str, dict[str, Any]] = {}
    for cell, (_, figure) in todo.items():
        series: dict[str, list[float]] = {}
        for row in rows:
            if row["cell"] == cell:
                series.setdefault(row["peer"], []).append(row[figure])
        ours = series.get(OURS)
        medians = {name: sorted(values)[len(values) // 2] for name, values in series.items()}
        others = {name: values for name, values in series.items() if name != OURS}
        ratios = {name: median_ratio(ours, values) for name, values in others.items()} if ours else {}
        summary[cell] = {"figure": figure, "medians": medians, "ratios": ratios}
    return summary


def print_summary(summary: dict[str, dict[str, Any]]) -> None:
    for cell, entry in summary.items():
        line = ", ".join(f"{name} {value:.1f}" for name, value in entry["medians"].items())
        print(f"{cell} [{entry['figure']}]: {line}")
        for name, ratio in entry["ratios"].items():
            print(f"    x {ratio['median']:.2f} of {name} ({ratio['low']:.2f} to {ratio['high']:.2f})")


def measure_model(args: argparse.Namespace, model: str, dtype: str) -> dict[str, Any]:
    """All cells of one model in one dtype."""
    commands = peer_commands(args.vllm_python)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        todo = cells(model, set(args.cells.split(",")), folder)
        peers = []
        for name in args.peers.split(","):
            if name not in commands:
                print(f"  {name} is left out: no --vllm-python", file=sys.stderr)
                continue
            peer = stack.enter_context(PeerProcess(name, commands[name], args.threads))
            try:
                peer.load(models.directory(model), dtype, args.threads)
            except PeerError as error:
                print(f"  {name} is left out: {error}", file=sys.stderr)
                continue
            peers.append(peer)
        rows = run_rounds(peers, todo, args.rounds, f"{model}{dtype}{args.threads}")
        return {
            "model": model,
            "dtype": dtype,
            "threads": args.threads,
            "versions": {peer.name: peer.versions for peer in peers},
            "num_rounds": len({row["round"] for row in rows}),
            "has_priority": all(peer.is_preferred for peer in peers),
            "summary": summarise(rows, todo),
            "rows": rows,
        }


def main(argv: list[str]) -> None:
    """Measure and write one result file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks engine", description=__doc__)
    parser.add_argument("--models", default="tiny:float32", help="name:dtype, comma-separated; tiny or 120m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cells", default="decode,mix,picture")
    parser.add_argument("--peers", default="chiasm,generate,hf_batching,vllm")
    parser.add_argument("--vllm-python", help="python of the environment that peers/install_vllm.sh made")
    parser.add_argument("--pause-pid-file", type=Path, help="stop the process it names while measuring")
    parser.add_argument("--name", default="engine", help="end of the result file's name")
    args = parser.parse_args(argv)
    described = machine.describe()
    results = []
    with machine.paused(args.pause_pid_file):
        for pair in args.models.split(","):
            model, dtype = pair.split(":")
            print(f"{model} {dtype}, {args.threads} threads", file=sys.stderr)
            results.append(measure_model(args, model, dtype))
            print_summary(results[-1]["summary"])
    path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{args.name}.json"
    path.write_text(json.dumps({"machine": described, "results": results}, indent=1) + "\n")
    print(f"written: benchmarks/results/{path.name}")
