"""How long a million requests over a thousand workers take to simulate: `python -m benchmarks simulator_scale`.

The same seed gives the same `digest`, of the times to the first token.
"""

import argparse
import hashlib
import json
import resource
import time
from pathlib import Path

from benchmarks.machine import describe
from chiasm.simulator.calibration import Calibration, Cost
from chiasm.simulator.cluster import Cluster, adaptive, aggregated, disaggregated
from chiasm.simulator.run import simulate
from chiasm.simulator.traffic import RequestClass, Traffic

COSTS = Calibration(
    source="round numbers of a large model on a large device",
    request=Cost(fixed_s=0.002),
    media=Cost(fixed_s=0.002, per_unit_s=1e-8),
    encode=Cost(fixed_s=0.004, per_unit_s=4e-5),
    prefill=Cost(fixed_s=0.006, per_unit_s=3e-5),
    step=Cost(fixed_s=0.008, per_unit_s=2e-4),
    context_s=1e-9,
    transfer=Cost(fixed_s=0.002, per_unit_s=1e-6),
    max_running=64,
    max_step_tokens=2048,
)
CLASSES = (
    RequestClass(name="images", num_images=3, output_tokens=128, output_spread="exponential", repeat_share=0.2),
    RequestClass(name="text", text_tokens=300, output_tokens=128, output_spread="exponential"),
)


def fleets(num_workers: int) -> list[Cluster]:
    encoders = max(1, num_workers // 5)
    return [aggregated(num_workers), adaptive(num_workers), disaggregated(encoders, num_workers - encoders)]


def measured(cluster: Cluster, num_requests: int, rate_per_worker_s: float) -> dict[str, object]:
    traffic = Traffic(
        classes=CLASSES, rate_per_s=rate_per_worker_s * len(cluster.workers), num_requests=num_requests, seed=1
    )
    start_s = time.process_time()
    outcome = simulate(cluster, traffic, COSTS)
    cpu_s = time.process_time() - start_s
    return {
        "fleet": cluster.name,
        "requests": len(outcome.record),
        "cpu_s": round(cpu_s, 1),
        "us_per_request": round(1e6 * cpu_s / len(outcome.record), 1),
        "simulated_s": round(outcome.elapsed_s, 1),
        "digest": hashlib.sha256(outcome.record.ttft_s.tobytes()).hexdigest()[:16],
        "ttft_mean_ms": round(1e3 * float(outcome.record.ttft_s.mean()), 2),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks simulator_scale", description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=2.0, help="requests a second for each worker")
    parser.add_argument("--fleet", choices=("agg", "auto", "apart"), help="one of the three; default: all")
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    options = parser.parse_args(arguments)
    rows = []
    chosen = dict(zip(("agg", "auto", "apart"), fleets(options.workers), strict=True))
    for cluster in [chosen[options.fleet]] if options.fleet else chosen.values():
        rows.append(measured(cluster, options.requests, options.rate))
        print(json.dumps(rows[-1]), flush=True)
    if options.output is not None:
        found = {"benchmark": "simulator_scale", "machine": describe(), "rows": rows}
        options.output.write_text(json.dumps(found, indent=1) + "\n")
