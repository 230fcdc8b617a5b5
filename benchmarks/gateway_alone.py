"""The gateway alone beside other fronts, each before a worker that answers at once: requests, pictures, events.

Every front gets the same bodies from `wrk` in short runs that take turns within a round. The worker of Chiasm's
gateway is in its process, as `chiasm serve` has it; `chiasm_fleet` and the proxies forward to a worker of nothing but
an HTTP parser. Rates are of all processes on the machine's cores together, CPU seconds of the front alone.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pybase64

from benchmarks import machine
from benchmarks.gateway_tax import RESULTS, ROOT, big_picture, free_port
from benchmarks.ratios import median_ratio

STREAM_TOKENS = 256
# cell -> (pictures, streamed, connections)
CELLS = {
    "text": (0, False, 8),
    "text, 1 connection": (0, False, 1),
    "1 picture": (1, False, 8),
    "1 picture, 1 connection": (1, False, 1),
    "10 pictures": (10, False, 4),
    "event stream": (0, True, 8),
}
START_TIMEOUT_S = 60.0
_SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = io.open("{body}", "rb"):read("*a")
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('{{"requests": %d, "wall_us": %d, "median_us": %d, "p99_us": %d, "errors": %d}}',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.status + e.timeout))
end
"""


def bodies() -> dict[str, bytes]:
    """One request for each cell; pictures of about 1 MB, all different."""
    pictures = [pybase64.b64encode(big_picture(seed)).decode() for seed in range(10)]
    made = {}
    for cell, (count, is_stream, _) in CELLS.items():
        content: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
            for picture in pictures[:count]
        ]
        content.append({"type": "text", "text": "What color is it?"})
        body = {
            "model": "instant",
            "stream": is_stream,
            "max_tokens": STREAM_TOKENS if is_stream else 8,
            "messages": [{"role": "user", "content": content if count else "What color is it?"}],
        }
        made[cell] = json.dumps(body).encode()
    return made


class Front:
    """A running server that takes chat completions."""

    def __init__(self, name: str, port: int, command: list[str]) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{port}/v1/chat/completions"
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},  # noqa: TID251 - a child's environment
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        machine.prefer(self._process.pid)

    def wait_ready(self, body: bytes) -> None:
        """Ask until an answer comes."""
        command = ["curl", "-sf", "-m", "5", "-H", "Content-Type: application/json", "--data-binary", "@-", self.url]
        deadline = time.monotonic() + START_TIMEOUT_S
        while subprocess.run(command, input=body, capture_output=True, check=False).returncode:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"{self.name} does not answer")
            time.sleep(0.2)

    def cpu_s(self) -> float:
        """Time its process has computed."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def load(self, script: Path, connections: int, seconds: int) -> dict[str, float]:
        """One run of wrk; every answer must be 200."""
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "-s", str(script), self.url]
        cpu_s = self.cpu_s()
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(run.stdout[run.stdout.index("{") :])
        if found["errors"] or not found["requests"]:
            raise RuntimeError(f"{self.name}: {found}")
        return {
            "requests_per_s": found["requests"] / found["wall_us"] * 1e6,
            "median_s": found["median_us"] / 1e6,
            "p99_s": found["p99_us"] / 1e6,
            "cpu_s": (self.cpu_s() - cpu_s) / found["requests"],
        }

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def fronts(router_python: Path | None, epd_proxy: Path | None) -> Iterator[list[Front]]:
    """All fronts, listening."""
    port, python = free_port(), sys.executable
    worker = f"http://127.0.0.1:{port}"
    commands = {"worker": (port, [python, "-m", "benchmarks.bare_worker", str(port)])}
    gateway = [python, "-m", "benchmarks.instant_gateway"]
    port = free_port()
    commands["chiasm"] = (port, [*gateway, str(port)])
    port = free_port()
    commands["chiasm_fleet"] = (port, [*gateway, str(port), worker])
    if router_python is not None:
        port, metrics = free_port(), str(free_port())
        router = [str(router_python.parent / "vllm-router"), "--host", "127.0.0.1", "--port", str(port)]
        more = [
            "--worker-urls",
            worker,
            "--policy",
            "round_robin",
            "--prometheus-port",
            metrics,
            "--log-level",
            "error",
        ]
        commands["vllm_router"] = (port, router + more)
        if epd_proxy is not None:
            port = free_port()
            servers = [f"--encode-servers-urls={worker}", "--prefill-servers-urls=none"]
            proxy = [str(router_python), str(epd_proxy), "--host", "127.0.0.1", "--port", str(port)]
            commands["epd_proxy"] = (port, [*proxy, *servers, f"--decode-servers-urls={worker}"])
    with ExitStack() as closing:
        running = []
        for name, (at, command) in commands.items():
            running.append(Front(name, at, command))
            closing.callback(running[-1].close)
        yield running


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of all rounds; the first round is not kept."""
    rows: list[dict[str, Any]] = []
    made = bodies()
    with tempfile.TemporaryDirectory() as folder, fronts(args.router_python, args.epd_proxy) as running:
        scripts = {}
        for number, (cell, body) in enumerate(made.items()):
            (Path(folder) / f"{number}.json").write_bytes(body)
            scripts[cell] = Path(folder) / f"{number}.lua"
            scripts[cell].write_text(_SCRIPT.format(body=Path(folder) / f"{number}.json"))
        for front in running:
            front.wait_ready(made["text"])
        for number in range(args.rounds + 1):
            for cell, (num_pictures, _, connections) in CELLS.items():
                for front in random.sample(running, len(running)):
                    seconds = (args.seconds if number else 1) * (3 if num_pictures > 1 else 1)
                    figures = front.load(scripts[cell], connections, seconds)
                    if number:
                        rows.append({"round": number, "cell": cell, "front": front.name, **figures})
            print(f"  round {number}/{args.rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return rows


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians, ratios of requests per second and per CPU second within rounds, and what a front adds."""
    summary: dict[str, Any] = {}
    for cell in CELLS:
        found: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            if row["cell"] == cell:
                found.setdefault(row["front"], []).append(row)
        entry: dict[str, Any] = {"fronts": {}, "ratios": {}, "cpu_ratios": {}}
        for name, mine in found.items():
            entry["fronts"][name] = {
                figure: statistics.median(row[figure] for row in mine)
                for figure in ("requests_per_s", "median_s", "p99_s", "cpu_s")
            }
            for figure in ("median_s", "p99_s"):
                pairs = zip(mine, found["worker"], strict=True)
                entry["fronts"][name][f"added_{figure}"] = statistics.median(a[figure] - b[figure] for a, b in pairs)
            if name not in ("chiasm", "worker"):
                ours, theirs = ([row["requests_per_s"] for row in found[which]] for which in ("chiasm", name))
                entry["ratios"][name] = median_ratio(ours, theirs)
                ours, theirs = ([1.0 / max(row["cpu_s"], 1e-6) for row in found[which]] for which in ("chiasm", name))
                entry["cpu_ratios"][name] = median_ratio(ours, theirs)
        summary[cell] = entry
    return summary


def main(argv: list[str]) -> None:
    """Measure and write one result file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gateway_alone", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2, help="length of one run")
    parser.add_argument("--router-python", type=Path, help="interpreter of an environment with vllm-router 0.1.17")
    parser.add_argument(
        "--epd-proxy", type=Path, help="vLLM's example disagg_epd_proxy.py, run by the same interpreter"
    )
    parser.add_argument("--pause-pid-file", type=Path, help="stop the process it names while measuring")
    parser.add_argument("--name", default="gateway-alone", help="end of the result file's name")
    args = parser.parse_args(argv)
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed; Debian and Ubuntu have it as the package 'wrk'")
    described = machine.describe()
    machine.prefer(os.getpid())
    with machine.paused(args.pause_pid_file):
        rows = measure(args)
    result = {"machine": described, "fronts": summarise(rows), "rounds": args.rounds, "rows": rows}
    print(json.dumps(result["fronts"], indent=1))
    path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{args.name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: benchmarks/results/{path.name}")
