"""Where a decode step's time goes, and how far it is from what the machine's memory allows.

A step must read every weight and all keys and values once. Dividing those bytes by the measured speed of reading
gives the floor; the step's own time over the floor is the distance.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import machine, models, workloads
from chiasm import LLM

RESULTS = Path(__file__).parent / "results"
STREAM_BYTES = 512 * 2**20
REPEATS = 7
BATCHES = (1, 4, 16)
NUM_TOKENS = 64


def fastest(work: Callable[[], object]) -> float:
    """Seconds of the fastest of `REPEATS`."""
    walls = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        walls.append(time.perf_counter() - started)
    return min(walls)


def memory_speed(num_bytes: int) -> dict[str, float]:
    """GB/s of reading (a sum) and of copying (read plus write) `num_bytes` with torch's threads."""
    source = torch.ones(num_bytes // 4)
    target = torch.empty_like(source)
    read_s, copy_s = fastest(source.sum), fastest(lambda: target.copy_(source))
    return {"mb": num_bytes / 1e6, "read_gb_s": num_bytes / read_s / 1e9, "copy_gb_s": 2 * num_bytes / copy_s / 1e9}


def model_bytes(config: Any, weight_bytes: int, kv_bytes: int) -> tuple[int, int]:
    """Bytes of the weights that a step reads, and of keys and values per token."""
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    attention = config.hidden_size * dim * (2 * heads + 2 * kv_heads)
    layer = attention + 3 * config.hidden_size * config.intermediate_size
    weights = config.num_hidden_layers * layer + config.vocab_size * config.hidden_size
    return weights * weight_bytes, 2 * config.num_hidden_layers * kv_heads * dim * kv_bytes


def time_steps(llm: LLM, batch: int, max_token: int) -> float:
    """Seconds per decode step: a long run less a one-token run, over its steps."""
    steps = []
    for number in range(REPEATS):
        walls = []
        for num_tokens in (1, NUM_TOKENS):
            prompts = workloads.prompts(f"floor {number} {num_tokens}", batch, max_token)
            started = time.perf_counter()
            llm.generate(prompts, max_tokens=num_tokens, temperature=0, ignore_eos=True)
            walls.append(time.perf_counter() - started)
        steps.append((walls[1] - walls[0]) / (NUM_TOKENS - 1))
    return statistics.median(steps)


def operators(llm: LLM, batch: int, max_token: int) -> dict[str, dict[str, float]]:
    """torch operators of a run by own time, per step; what is in no operator (kernels, Python) is not in here."""
    prompts = workloads.prompts("floor profile", batch, max_token)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        llm.generate(prompts, max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True)
    largest = sorted(profiled.key_averages(), key=lambda event: -event.self_cpu_time_total)[:12]
    return {
        event.key: {"ms": event.self_cpu_time_total / 1e3 / NUM_TOKENS, "calls": event.count / NUM_TOKENS}
        for event in largest
    }


def measure(model: str, dtype: str, threads: int, weight_bytes: int) -> dict[str, Any]:
    """All batches of one model."""
    from transformers import AutoConfig  # noqa: PLC0415 - after the arguments are checked

    config = AutoConfig.from_pretrained(models.directory(model))
    kv_bytes = getattr(torch, dtype).itemsize
    weights, per_token = model_bytes(getattr(config, "text_config", config), weight_bytes, kv_bytes)
    speed = memory_speed(weights)
    rows = []
    with LLM(str(models.directory(model)), dtype=dtype, threads=threads, prefix_cache_bytes=0) as llm:
        for batch in BATCHES:
            step_s = time_steps(llm, batch, models.MAX_TOKEN[model])
            context = workloads.PROMPT_TOKENS + NUM_TOKENS / 2
            read = weights + batch * context * per_token
            rows.append(
                {
                    "batch": batch,
                    "step_ms": step_s * 1e3,
                    "read_mb": read / 1e6,
                    "read_gb_s": read / step_s / 1e9,
                    "floor_ms": read / speed["read_gb_s"] / 1e6,
                    "times_floor": step_s / (read / speed["read_gb_s"] / 1e9),
                    "operators": operators(llm, batch, models.MAX_TOKEN[model]),
                }
            )
    return {"model": model, "dtype": dtype, "weights_mb": weights / 1e6, "memory": speed, "rows": rows}


def main(argv: list[str]) -> None:
    """Measure and write one result file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks engine_floor", description=__doc__)
    parser.add_argument("--models", default="tiny:float32", help="name:dtype, comma-separated; tiny or 120m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--weight-bytes", type=int, default=4, help="bytes in which the engine holds one weight")
    parser.add_argument("--pause-pid-file", type=Path, help="stop the process it names while measuring")
    parser.add_argument("--name", default="floor", help="end of the result file's name")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    described, results = machine.describe(), []
    with machine.paused(args.pause_pid_file):
        stream = memory_speed(STREAM_BYTES)
        for pair in args.models.split(","):
            model, dtype = pair.split(":")
            results.append(measure(model, dtype, args.threads, args.weight_bytes))
            for row in results[-1]["rows"]:
                shown = {key: round(value, 3) for key, value in row.items() if key != "operators"}
                print(model, dtype, shown, flush=True)
    result = {"machine": described, "threads": args.threads, "stream": stream, "results": results}
    path = RESULTS / f"{time.strftime('%Y-%m-%d')}-{args.name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: benchmarks/results/{path.name}")
