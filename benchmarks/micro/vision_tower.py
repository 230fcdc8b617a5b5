"""The C vision tower against torch's, one 448 x 448 picture, taking turns in one process.

Run: python benchmarks/micro/vision_tower.py --threads 1 --json FILE
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from chiasm.engines.embedded.families.registry import family_for
from chiasm.engines.embedded.tower.base import Tower
from chiasm.engines.embedded.tower.registry import make_tower
from chiasm.launch.model import model_directory
from chiasm.media.prepare.base import PreparedImage


def encode_ms(tower: Tower, picture: PreparedImage) -> float:
    started = time.perf_counter()
    with torch.inference_mode():
        tower.encode([picture])
    return (time.perf_counter() - started) * 1e3


def measure(rounds: int, threads: int) -> dict[str, Any]:
    """Fastest and median milliseconds of each, and the median of the rounds' ratios native / torch."""
    torch.set_num_threads(threads)
    family = family_for(model_directory(""))
    assert family.preparer is not None
    model = family.load(torch.float32)
    towers: dict[str, Tower] = {
        "native": make_tower(model.vision, kind="auto", threads=threads),
        "torch": make_tower(model.vision, kind="torch", threads=threads),
    }
    pixels = np.random.default_rng(0).integers(0, 255, (448, 448, 3), dtype=np.uint8)
    picture = family.preparer.prepare(Image.fromarray(pixels))
    times = [{name: encode_ms(tower, picture) for name, tower in towers.items()} for _ in range(rounds + 2)][2:]
    result: dict[str, Any] = {"towers": [tower.name for tower in towers.values()]}
    for name in towers:
        taken = [row[name] for row in times]
        result[f"{name}_fastest_and_median_ms"] = round(min(taken), 2), round(statistics.median(taken), 2)
    result["native_to_torch"] = round(statistics.median(row["native"] / row["torch"] for row in times), 3)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", help="also write the result here")
    args = parser.parse_args()
    command = f"python benchmarks/micro/vision_tower.py --threads {args.threads} --rounds {args.rounds}"
    result = {"command": command, "cores": os.cpu_count(), "load_before": os.getloadavg()}
    text = json.dumps(result | measure(args.rounds, args.threads), indent=1)
    print(text)
    if args.json:
        Path(args.json).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
