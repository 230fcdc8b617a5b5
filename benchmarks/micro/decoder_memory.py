"""What results of decoder processes cost: lent shared memory beside the socket alone, in turns.

    python -m benchmarks.micro.decoder_memory --rounds 15 --json FILE

Pictures are those of `python -m benchmarks media`; CPU is of owner and decoder process together. Both ways run the same
code, but one has no block to lend. "Hand-over" prepares nothing: the process writes so many bytes and the owner reads
one of each page.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from benchmarks import machine
from benchmarks.media import TOKEN_PIXELS, encoded, photo
from benchmarks.micro.writes import Writes
from benchmarks.ratios import median_ratio
from chiasm.media.decoding import PictureDecoder
from chiasm.media.isolation.blocks import LentBlocks
from chiasm.media.prepare.base import ImagePreparer
from chiasm.media.prepare.qwen2_vl import Qwen2VLPreparer
from chiasm.protocol.media import InlineSource, MediaItem
from chiasm.settings import MediaSettings

WAYS = ("shared memory", "socket")


def cpu_s(pid: int | str) -> float:
    """All threads' time on a processor; the ticks of `times` are ten milliseconds long."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


class Side:
    """One decoder with one process."""

    def __init__(self) -> None:
        self._decoder = PictureDecoder(MediaSettings(decoder="processes", decode_threads=1))
        [self._pid] = self._decoder._decode.idle_pids  # type: ignore[attr-defined]

    async def turn(self, item: MediaItem, preparer: ImagePreparer, count: int) -> tuple[float, float]:
        """Wall and CPU seconds of each picture."""
        started, used = time.perf_counter(), cpu_s("self") + cpu_s(self._pid)
        for _ in range(count):
            _touch((await self._decoder.prepare(item, preparer)).arrays["pixel_values"])
        return (time.perf_counter() - started) / count, (cpu_s("self") + cpu_s(self._pid) - used) / count

    def close(self) -> None:
        self._decoder.close()


def _touch(array: NDArray[Any]) -> None:
    assert array.reshape(-1).view(np.uint8)[::4096].max() >= 0


@contextmanager
def sides() -> Iterator[dict[str, Side]]:
    opened = {name: Side() for name in WAYS}
    lends_nothing = opened["socket"]._decoder._decode._idle[0]._blocks  # type: ignore[attr-defined]
    with mock.patch.object(
        LentBlocks, "take", autospec=True, side_effect=lambda self: None if self is lends_nothing else _take(self)
    ):
        try:
            yield opened
        finally:
            for each in opened.values():
                each.close()


_take = LentBlocks.take


async def measured(item: MediaItem, preparer: ImagePreparer, rounds: int, count: int) -> dict[str, Any]:
    wall: dict[str, list[float]] = {name: [] for name in WAYS}
    cpu: dict[str, list[float]] = {name: [] for name in WAYS}
    with sides() as opened:
        for number in range(rounds + 1):
            for name in WAYS if number % 2 else reversed(WAYS):
                one = await opened[name].turn(item, preparer, count)
                if number:  # the first starts processes and touches memory
                    wall[name].append(one[0])
                    cpu[name].append(one[1])
    return {
        "wall_ms": {name: statistics.median(times) * 1e3 for name, times in wall.items()},
        "cpu_ms": {name: statistics.median(times) * 1e3 for name, times in cpu.items()},
        "times_faster": median_ratio(wall["socket"], wall["shared memory"]),
        "times_less_cpu": median_ratio(cpu["socket"], cpu["shared memory"]),
    }


def item_of(size: tuple[int, int]) -> MediaItem:
    data = encoded(photo(*size), "JPEG", quality=88)
    return MediaItem(identity="0" * 64, format="jpeg", width=size[0], height=size[1], source=InlineSource(data))


async def run(rounds: int) -> dict[str, Any]:
    found = {}
    small = item_of((64, 64))
    for num_bytes in (600_000, 2_400_000, 24_000_000):
        found[f"hand-over of {num_bytes / 1e6:g} MB"] = await measured(small, Writes(num_bytes), rounds, 10)
    with tempfile.TemporaryDirectory() as folder:
        for size in ((1920, 1080), (4000, 3000)):
            for tokens in (256, 1024):
                preparer = Qwen2VLPreparer(Path(folder), {"max_pixels": tokens * TOKEN_PIXELS}, {})
                name = f"{size[0]}x{size[1]}, {tokens} tokens"
                found[name] = await measured(item_of(size), preparer, rounds, 10 if size[0] < 4000 else 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = {"machine": machine.describe(), "cells": asyncio.run(run(options.rounds))}
    for name, cell in found["cells"].items():
        figures = ", ".join(f"{way} {cell['wall_ms'][way]:.2f} ms, {cell['cpu_ms'][way]:.2f} CPU" for way in WAYS)
        ratios = (cell["times_faster"], cell["times_less_cpu"])
        wall, cpu = (f"x{one['median']:.2f} [{one['low']:.2f}, {one['high']:.2f}]" for one in ratios)
        print(f"{name}: {figures}; {wall}, CPU {cpu}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
