"""What HTTP and the gateway add: the same requests to the worker itself and through a server, and the gateway alone.

Both engines are loaded once; direct and HTTP runs alternate, and the tax is taken within a round.
"""

import argparse
import asyncio
import json
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pybase64

from benchmarks import machine
from benchmarks.direct_engine import chat_body
from benchmarks.http_client import count_answers, time_http_streams
from benchmarks.modules import process

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
START_TIMEOUT_S = 120.0
# name -> requests in a run, at once, tokens each, with a picture
STREAMS = {
    "text, 1 at a time": (8, 1, 64, False),
    "text, 16 at once": (32, 16, 64, False),
    "picture, 1 at a time": (6, 1, 8, True),
}
CONNECTIONS = 8
PICTURE_BYTES = 1_000_000


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_ready(address: str) -> None:
    """Poll `/ready`."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(address + "/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"{address} is not ready after {START_TIMEOUT_S} s")


def ask_direct(direct: subprocess.Popen, **run: Any) -> dict[str, float]:
    assert direct.stdin is not None
    assert direct.stdout is not None
    direct.stdin.write(json.dumps(run) + "\n")
    direct.stdin.flush()
    return json.loads(direct.stdout.readline())


def compare_streams(rounds: int, threads: int) -> list[dict[str, Any]]:
    """Rows of both ways of asking."""
    port, rows = free_port(), []
    address = f"http://127.0.0.1:{port}"
    settings = ["--set", f"engine.threads={threads}", "--set", "engine.prefix_cache_bytes=0"]
    server = process("chiasm", "serve", "--json", "--port", str(port), *settings, threads=threads)
    with server, process("benchmarks.direct_engine", str(threads), threads=threads) as direct:
        assert direct.stdout is not None
        direct.stdout.readline()
        wait_ready(address)
        for number in range(rounds + 1):
            for name, (count, concurrency, num_tokens, has_picture) in STREAMS.items():
                for way in random.sample(["direct", "http"], 2):
                    seed = f"{number} {way}"
                    if way == "direct":
                        run = {"count": count, "concurrency": concurrency, "num_tokens": num_tokens}
                        figures = ask_direct(direct, seed=seed, has_picture=has_picture, **run)
                    else:
                        bodies = [chat_body(f"{seed} {n}", num_tokens, has_picture=has_picture) for n in range(count)]
                        figures = asyncio.run(time_http_streams(address, bodies, concurrency))
                    if number:
                        rows.append({"round": number, "cell": name, "way": way, **figures})
            print(f"  round {number}/{rounds}", file=sys.stderr)
    return rows


def gateway_alone(rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Requests per second before an instant worker, and event-stream events per second."""
    port, rows = free_port(), []
    address = f"http://127.0.0.1:{port}"
    text = json.dumps({"messages": [{"role": "user", "content": "What color is it?"}], "max_tokens": 8}).encode()
    url = "data:image/png;base64," + pybase64.b64encode(big_picture()).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
    picture = json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 8}).encode()
    stream = json.dumps(json.loads(text) | {"stream": True, "max_tokens": 256}).encode()
    with process("benchmarks.instant_gateway", str(port), threads=1):
        wait_ready(address)
        for number in range(rounds + 1):
            for name, body in {"text": text, "1 MB picture": picture}.items():
                figures = asyncio.run(count_answers(address, body, CONNECTIONS, seconds))
                if number:
                    rows.append({"round": number, "cell": name, **figures})
            figures = asyncio.run(time_http_streams(address, [stream] * 32, CONNECTIONS))
            if number:
                rows.append({"round": number, "cell": "event stream", **figures})
    return rows


def big_picture(seed: int = 0) -> bytes:
    """A PNG of about `PICTURE_BYTES`: noise does not compress."""
    import io  # noqa: PLC0415

    from PIL import Image  # noqa: PLC0415

    side = int((PICTURE_BYTES / 3) ** 0.5)
    file = io.BytesIO()
    Image.frombytes("RGB", (side, side), random.Random(seed).randbytes(side * side * 3)).save(file, "PNG")
    return file.getvalue()


def summarise(streams: list[dict[str, Any]], alone: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over rounds; taxes are medians of differences within a round."""
    summary: dict[str, Any] = {"streams": {}, "alone": {}}
    for cell in STREAMS:
        ways = {
            way: [row for row in streams if row["cell"] == cell and row["way"] == way] for way in ("direct", "http")
        }
        entry = {}
        for figure in ("first_token_s", "per_token_s", "events_per_s"):
            direct, http = ([row[figure] for row in ways[way]] for way in ("direct", "http"))
            entry[figure] = {
                "direct": statistics.median(direct),
                "http": statistics.median(http),
                "difference": statistics.median(b - a for a, b in zip(direct, http, strict=True)),
                "ratio": statistics.median(b / a for a, b in zip(direct, http, strict=True)),
            }
        summary["streams"][cell] = entry
    for row in alone:
        for figure, value in row.items():
            if figure not in ("round", "cell"):
                summary["alone"].setdefault(row["cell"], {}).setdefault(figure, []).append(value)
    summary["alone"] = {
        cell: {figure: statistics.median(values) for figure, values in entry.items()}
        for cell, entry in summary["alone"].items()
    }
    return summary


def main(argv: list[str]) -> None:
    """Measure and write one result file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gateway_tax", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each run of the gateway alone")
    parser.add_argument("--pause-pid-file", type=Path, help="stop the process it names while measuring")
    parser.add_argument("--name", default="gateway", help="end of the result file's name")
    args = parser.parse_args(argv)
    described = machine.describe()
    with machine.paused(args.pause_pid_file):
        streams = compare_streams(args.rounds, args.threads)
        alone = gateway_alone(args.rounds, args.seconds)
    summary = summarise(streams, alone)
    print(json.dumps(summary, indent=1))
    result = {"machine": described, "threads": args.threads, "summary": summary, "streams": streams, "alone": alone}
    path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{args.name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: benchmarks/results/{path.name}")
