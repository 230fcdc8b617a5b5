"""Pairs a second of a cross-encoder, 20 candidates a call: Chiasm against what services use instead.

The model is all-MiniLM-L6-v2 with a classification head of fixed random weights: what is measured is arithmetic and
batching. All engines are loaded once, take turns in every round and must agree on scores; ratios are taken in a round.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.peer_process import PeerError, PeerProcess
from benchmarks.peers.pooling.protocol import MAX_TOKENS
from benchmarks.ratios import median_ratio

RESULTS = Path(__file__).parent / "results" / "pooling"
OURS = "chiasm"
NUM_CANDIDATES = 20
MAX_DIFFERENCE = 1e-3  # of raw logits around 1, padded kernels round in another order
_PEERS = "benchmarks.peers.pooling"


def build_model(directory: Path) -> Path:
    """Write the cross-encoder."""
    import torch  # noqa: PLC0415 - only the driver's own part needs it
    from transformers import AutoModelForSequenceClassification, AutoTokenizer  # noqa: PLC0415

    from tests.numeric.minilm import directory as minilm  # noqa: PLC0415

    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(minilm(), num_labels=1)
    with torch.no_grad():
        model.classifier.weight.normal_()
    model.save_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(minilm())
    tokenizer.model_max_length = MAX_TOKENS
    tokenizer.save_pretrained(directory)
    return directory


def calls(seed: str, count: int, median_words: float) -> list[dict[str, Any]]:
    """Queries of 3 to 12 words and documents whose lengths are log-normal, as passages of a search index are."""
    rng = random.Random(seed)
    words = [f"{a}{b}" for a in ("re", "con", "de", "pro", "in", "ex") for b in ("port", "form", "tain", "act", "sent")]

    def text(num_words: int) -> str:
        return " ".join(rng.choice(words) for _ in range(num_words))

    return [
        {
            "query": text(rng.randint(3, 12)),
            "documents": [
                text(max(3, min(100, round(median_words * rng.lognormvariate(0, 0.6))))) for _ in range(NUM_CANDIDATES)
            ],
        }
        for _ in range(count)
    ]


def peer_commands(args: argparse.Namespace) -> dict[str, list[str]]:
    """How each peer's process is started."""
    here = sys.executable
    commands = {
        OURS: [here, "-m", f"{_PEERS}.chiasm_worker"],
        "hf_fixed": [here, "-m", f"{_PEERS}.hugging_face", "fixed", str(NUM_CANDIDATES)],
        **{f"hf_dynamic_{n}": [here, "-m", f"{_PEERS}.hugging_face", "dynamic", str(n)] for n in (4, 8, 20)},
    }
    for name, python, module in (
        ("sentence_transformers", args.sentence_transformers_python, "sentence_transformers_peer"),
        ("infinity", args.infinity_python, "infinity_peer"),
        ("vllm", args.vllm_python, "vllm_peer"),
    ):
        if python:
            commands[name] = [python, "-m", f"{_PEERS}.{module}"]
    return commands


def measure(peer: PeerProcess, work: list[dict[str, Any]], callers: int) -> dict[str, Any]:
    """One peer's turn."""
    answer = peer.ask(op="calls", calls=work, callers=callers)
    latencies = sorted(answer["latencies_s"])
    pairs = NUM_CANDIDATES * len(work)
    return {
        "pairs_per_s": pairs / answer["wall_s"],
        "cpu_s_per_pair": answer["cpu_s"] / pairs,
        "p50_s": latencies[len(latencies) // 2],
        "p95_s": latencies[min(len(latencies) - 1, int(0.95 * len(latencies)))],
        "scores": answer["scores"],
    }


def run_rounds(peers: list[PeerProcess], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Every peer does every cell in every round, in an order drawn anew; all must find the same scores."""
    rows: list[dict[str, Any]] = []
    rng = random.Random(1)
    for number in range(args.rounds + 1):  # round 0 warms up
        for callers in args.callers:
            count = args.calls * max(1, callers // 4) if number else 2
            work = calls(f"{number}-{callers}", count, args.median_words)
            wanted: list[list[float]] | None = None
            for peer in rng.sample(peers, len(peers)):
                row = measure(peer, work, callers)
                scores = row.pop("scores")
                wanted = scores if wanted is None else wanted
                difference = max(
                    abs(a - b) for x, y in zip(scores, wanted, strict=True) for a, b in zip(x, y, strict=True)
                )
                if difference > MAX_DIFFERENCE:
                    raise SystemExit(f"{peer.name} differs from the others by {difference}")
                if number:
                    rows.append({"round": number, "callers": callers, "peer": peer.name, **row})
    return rows


def summarise(rows: list[dict[str, Any]], callers: list[int]) -> dict[str, Any]:
    """Medians of each peer, and ours to each other's."""
    summary: dict[str, Any] = {}
    for count in callers:
        cell = [row for row in rows if row["callers"] == count]
        names = list(dict.fromkeys(row["peer"] for row in cell))
        figures = ("pairs_per_s", "cpu_s_per_pair", "p50_s", "p95_s")
        series = {name: {f: [row[f] for row in cell if row["peer"] == name] for f in figures} for name in names}
        medians = {name: {f: sorted(v)[len(v) // 2] for f, v in by.items()} for name, by in series.items()}
        ratios = {
            name: {
                "speed": median_ratio(series[OURS]["pairs_per_s"], by["pairs_per_s"]),
                "speed_by_cpu": median_ratio(by["cpu_s_per_pair"], series[OURS]["cpu_s_per_pair"]),
            }
            for name, by in series.items()
            if name != OURS and OURS in series
        }
        summary[f"{count} callers"] = {"medians": medians, "ratios": ratios}
    return summary


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks pooling", description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=8, help="calls in a turn; four times as many with 16 callers")
    parser.add_argument("--callers", type=lambda text: [int(n) for n in text.split(",")], default=[1, 16])
    parser.add_argument("--median-words", type=float, default=30.0, help="two to three tokens each")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--peers", default="", help="comma-separated; all that can be started by default")
    parser.add_argument("--sentence-transformers-python", help="python of an environment with sentence-transformers")
    parser.add_argument("--infinity-python", help="python of an environment with infinity-emb")
    parser.add_argument("--vllm-python", help="python of the environment that peers/install_vllm.sh made")
    parser.add_argument("--pause-pid-file", type=Path, help="stop the process it names while measuring")
    parser.add_argument("--name", default="pooling", help="end of the result file's name")
    return parser.parse_args(argv)


def started(commands: dict[str, list[str]], args: argparse.Namespace, stack: ExitStack) -> list[PeerProcess]:
    """Peers that could load the model."""
    model = build_model(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "cross-encoder")
    peers = []
    for name in args.peers.split(",") if args.peers else commands:
        peer = stack.enter_context(PeerProcess(name, commands[name], args.threads))
        try:
            peer.load(model, args.dtype, args.threads)
        except PeerError as error:
            print(f"  {name} is left out: {error}", file=sys.stderr)
            continue
        peers.append(peer)
    return peers


def print_summary(summary: dict[str, Any]) -> None:
    for cell, entry in summary.items():
        print(cell)
        for name, figures in entry["medians"].items():
            line = (
                f"  {name:22} {figures['pairs_per_s']:8.1f} pairs/s, p50 {1e3 * figures['p50_s']:.0f} ms, "
                f"p95 {1e3 * figures['p95_s']:.0f} ms, {1e3 * figures['cpu_s_per_pair']:.2f} CPU ms a pair"
            )
            if ratio := entry["ratios"].get(name):
                speed, by_cpu = ratio["speed"]["median"], ratio["speed_by_cpu"]["median"]
                line += f"; ours {speed:.2f}x, by CPU {by_cpu:.2f}x"
            print(line)


def main(argv: list[str]) -> None:
    """Measure and write one result file."""
    args = arguments(argv)
    described = machine.describe()
    with ExitStack() as stack:
        stack.enter_context(machine.paused(args.pause_pid_file))
        peers = started(peer_commands(args), args, stack)
        rows = run_rounds(peers, args)
        versions = {peer.name: peer.versions for peer in peers}
    summary = summarise(rows, args.callers)
    print_summary(summary)
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{args.name}.json"
    result = {
        "machine": described,
        "threads": args.threads,
        "dtype": args.dtype,
        "versions": versions,
        "summary": summary,
        "rows": rows,
    }
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: benchmarks/results/pooling/{path.name}")
