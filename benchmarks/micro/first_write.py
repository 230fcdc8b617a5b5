"""Time the first write and the second one to a slot of keys and values, with its memory committed at start and without.

Run: python benchmarks/micro/first_write.py --out benchmarks/notes/first_write.json
A prompt of 64 tokens of the packaged model's shape is written to each of 16 slots; seconds of the thread's CPU time, of
which the system's share is the pages. What a page costs depends on the machine: in a virtual one, on whether its host
has given that memory before.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from benchmarks import machine
from chiasm.engines.embedded import kv
from chiasm.engines.embedded.kv import SlotKV

SLOTS, TOKENS = 16, 64
SHAPE = {"num_layers": 4, "num_slots": SLOTS, "num_kv_heads": 2, "max_tokens": 4096, "head_dim": 64}


def writes(committed_bytes: int) -> dict[str, float]:
    """Milliseconds of CPU time per slot: the median and the longest first write, and the median second one."""
    kv.COMMITTED_BYTES = committed_bytes
    cache = SlotKV(**SHAPE, dtype=torch.float32)
    taken: list[list[float]] = [[], []]
    for times in taken:
        for slot in range(SLOTS):
            started_s = time.thread_time()
            cache.data[:, slot, :, :, :TOKENS] = 1.0
            times.append(1e3 * (time.thread_time() - started_s))
    first, second = taken
    return {
        "first_ms": statistics.median(first),
        "longest_first_ms": max(first),
        "second_ms": statistics.median(second),
    }


def main() -> None:
    """Print both ways, and write them down where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    at_start = kv.COMMITTED_BYTES
    found = {"on first write": writes(0), "at start": writes(at_start)}
    print(json.dumps(found, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps({"machine": machine.describe(), "ways": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
