"""Do AIPerf and `chiasm bench` measure the same? Both send the same bodies at the same rate to one server, in turns.

AIPerf (`pip install aiperf`) lives in an environment of its own. The server keeps no prefixes, so that the second one
finds nothing of the first. Medians may differ by 5 % + 1 ms: both clients share the machine with the server.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.epd.fleets import fleets
from benchmarks.models import TINY
from benchmarks.sending import send
from chiasm.bench.aiperf import STATISTICS, write_aiperf
from chiasm.bench.grid.servers import Server
from chiasm.bench.summary import summarize
from chiasm.bench.workload.bodies import BodyMaker
from chiasm.bench.workload.classes import RequestClass

RESULTS = Path(__file__).parent / "results"
FIGURES = ("time_to_first_token", "inter_token_latency", "request_latency")
ALLOWED_SHARE, ALLOWED_MS = 0.05, 1.0
TIMEOUT_S = 300
KIND = RequestClass(text_tokens=64, output_tokens=32)
READ = """
import sys
from aiperf.common.models import MetricRecordInfo
from aiperf.common.models.export_models import JsonExportData
for line in open(sys.argv[1] + "/profile_export.jsonl"):
    MetricRecordInfo.model_validate_json(line)
JsonExportData.model_validate_json(open(sys.argv[1] + "/profile_export_aiperf.json").read())
"""


def with_aiperf(aiperf: str, server: Server, bodies: list[bytes], rate: float, folder: Path) -> dict[str, float]:
    """AIPerf's medians in ms."""
    payloads = folder / "payloads.jsonl"
    payloads.write_bytes(b"".join(body + b"\n" for body in bodies))
    # told to be offline, AIPerf takes the folder of a tokenizer for a name
    command = ["env", "-u", "HF_HUB_OFFLINE", "-u", "TRANSFORMERS_OFFLINE", aiperf, "profile"]
    command += ["--model", server.dialect.model, "--url", server.target.url]
    command += ["--endpoint-type", "chat", "--streaming", "--use-server-token-count", "--tokenizer", str(TINY)]
    command += ["--input-file", str(payloads), "--custom-dataset-type", "raw_payload"]
    command += ["--dataset-sampling-strategy", "sequential", "--request-count", str(len(bodies)), "--ui", "none"]
    command += ["--request-rate", f"{rate:g}", "--arrival-pattern", "constant"]
    command += ["--artifact-dir", str(folder / "aiperf")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    found = list((folder / "aiperf").rglob(STATISTICS))
    if not found:
        raise SystemExit(f"AIPerf failed:\n{(run.stdout + run.stderr)[-2000:]}")
    statistics = json.loads(found[0].read_text())
    return {figure: statistics[figure]["p50"] for figure in FIGURES}


async def with_ours(server: Server, bodies: list[bytes], rate: float, folder: Path) -> dict[str, float]:
    """Ours, from the files in AIPerf's form."""
    measured = await send(server.target, bodies, [number / rate for number in range(len(bodies))])
    write_aiperf(folder, measured, summarize(measured, rate))
    statistics = json.loads((folder / STATISTICS).read_text())
    return {figure: statistics[figure]["p50"] for figure in FIGURES}


def reads(aiperf: str, folder: Path) -> str:
    """What AIPerf's own types say about our files; nothing is good."""
    python = Path(aiperf).parent / "python"
    run = subprocess.run([python, "-c", READ, folder], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return run.stderr.strip()[-500:] if run.returncode else ""


async def agreement(aiperf: str, count: int, rate: float, rounds: int) -> dict[str, Any]:
    """Medians of each round and of all."""
    rows: list[dict[str, Any]] = []
    problem = ""
    async with fleets({"local": ("local",)}, "engine.prefix_cache_bytes=0") as running:
        server = running["local"]
        for number in range(rounds):
            maker = BodyMaker((KIND,), server.dialect, f"round {number}")
            bodies = [maker.make(KIND, index) for index in range(count)]
            with TemporaryDirectory() as name:
                row: dict[str, Any] = {}
                for tool in ("chiasm bench", "aiperf")[:: 1 if number % 2 else -1]:
                    if tool == "aiperf":
                        row[tool] = await asyncio.to_thread(with_aiperf, aiperf, server, bodies, rate, Path(name))
                    else:
                        row[tool] = await with_ours(server, bodies, rate, Path(name))
                problem = problem or reads(aiperf, Path(name))
                rows.append(row)
    return {"rounds": rows, "figures": {figure: _compared(rows, figure) for figure in FIGURES}, "problem": problem}


def _compared(rows: list[dict[str, Any]], figure: str) -> dict[str, Any]:
    ours, theirs = (float(np.median([row[tool][figure] for row in rows])) for tool in ("chiasm bench", "aiperf"))
    return {
        "chiasm_bench_ms": ours,
        "aiperf_ms": theirs,
        "agree": abs(ours - theirs) <= ALLOWED_SHARE * theirs + ALLOWED_MS,
    }


def parsed(argv: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks aiperf_agreement", description=__doc__)
    parser.add_argument("--aiperf", default=shutil.which("aiperf"), help="the command; default: from PATH")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--rate", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--name", default="aiperf-agreement", help="end of the result file's name")
    args = parser.parse_args(argv)
    if args.aiperf is None or not Path(args.aiperf).is_file():
        parser.error("AIPerf is not there: install it in an environment of its own, and name it with --aiperf")
    return args


def main(argv: list[str]) -> None:
    """Measure and write one result file."""
    args = parsed(argv)
    described = machine.describe()
    result = {"machine": described} | asyncio.run(agreement(args.aiperf, args.requests, args.rate, args.rounds))
    print(json.dumps(result, indent=1))
    path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{args.name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: benchmarks/results/{path.name}")
