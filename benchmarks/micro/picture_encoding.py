"""What encoding a picture costs when torch's threads spin or sleep while they wait, alone and beside a busy process.

Also times two choices of the vision tower on one thread. Run: python benchmarks/micro/picture_encoding.py --json FILE
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional

from chiasm.engines.embedded.families.registry import family_for
from chiasm.launch.model import model_directory

ROUNDS = 3


def fastest_and_median_ms(work: Callable[[], Any], count: int = 12) -> tuple[float, float]:
    work()
    times = []
    for _ in range(count):
        started = time.perf_counter()
        work()
        times.append((time.perf_counter() - started) * 1e3)
    return round(min(times), 2), round(statistics.median(times), 2)


def measure_encoding() -> dict[str, Any]:
    """One 448 x 448 picture through the packaged model's vision tower, on two threads."""
    torch.set_num_threads(2)
    family = family_for(model_directory(""))
    model = family.load(torch.float32)
    pixels = np.random.default_rng(0).integers(0, 255, (448, 448, 3), dtype=np.uint8)
    prepared = family.preparer.prepare(Image.fromarray(pixels))
    return {"encode_ms": fastest_and_median_ms(lambda: family.encode(model, [prepared]))}


def measure_choices() -> dict[str, Any]:
    """Patch embedding with both frames or one; attention fused or as three operations."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        rows = {width: (torch.randn(784, width), torch.randn(192, width)) for width in (1536, 768)}
        q, k, v = (torch.randn(1, 6, 784, 32) for _ in range(3))
        return {
            "patches_both_frames_ms": fastest_and_median_ms(lambda: functional.linear(*rows[1536])),
            "patches_one_frame_ms": fastest_and_median_ms(lambda: functional.linear(*rows[768])),
            "attention_fused_ms": fastest_and_median_ms(lambda: functional.scaled_dot_product_attention(q, k, v)),
            "attention_in_three_ms": fastest_and_median_ms(lambda: (q @ k.transpose(-1, -2)).softmax(-1) @ v),
        }


def ask_child(what: str, **variables: str) -> dict[str, Any]:
    clean = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}  # noqa: TID251 - for children
    done = subprocess.run(
        [sys.executable, __file__, "--child", what], env=clean | variables, capture_output=True, text=True, check=True,
        timeout=120,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", choices=("encoding", "choices"), help=argparse.SUPPRESS)
    parser.add_argument("--json", help="also write the result here")
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure_encoding() if args.child == "encoding" else measure_choices()))
        return
    result: dict[str, Any] = {"command": "python benchmarks/micro/picture_encoding.py", "cores": os.cpu_count()}
    result["load_before"] = os.getloadavg()
    for beside in ("alone", "busy"):
        neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if beside == "busy" else None
        try:
            for _ in range(ROUNDS):
                for policy, variables in (("spin", {}), ("sleep", {"OMP_WAIT_POLICY": "passive"})):
                    taken = ask_child("encoding", **variables)["encode_ms"]
                    result.setdefault(f"{beside}_{policy}_fastest_and_median_ms", []).append(taken)
        finally:
            if neighbour is not None:
                neighbour.kill()
                neighbour.wait()
    result |= ask_child("choices")
    text = json.dumps(result, indent=1)
    print(text)
    if args.json:
        Path(args.json).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
