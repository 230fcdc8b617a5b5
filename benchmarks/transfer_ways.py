"""Ways to hand a tensor from one process to another, under one interface; run as a program, the consumer's process."""

import mmap
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from chiasm.connectors.base import Transport, checksum
from chiasm.connectors.file import FileTransport
from chiasm.connectors.shm.transport import ShmTransport
from chiasm.connectors.tcp.transport import TcpTransport

MAX_BYTES = 64 * 2**20
TTL_S = 600.0
TIMEOUT_S = 30.0


class SafetensorsFolder:
    """What vLLM's example connector for embeddings does: one safetensors file per item in a shared folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, key: str, data: memoryview, *, ttl_s: float) -> str:
        path = self._folder / f"{key}.safetensors"
        save_file({"ec_cache": torch.from_numpy(np.frombuffer(data, np.uint8))}, path)
        return str(path)

    def get(self, address: str, num_bytes: int, *, timeout_s: float) -> memoryview:
        return load_file(address)["ec_cache"].numpy().data

    def drop(self, key: str) -> None:
        (self._folder / f"{key}.safetensors").unlink()

    def close(self) -> None:
        pass


class PlainMemory:
    """What is left of a hand-over without names, leases and checks: memory that both have mapped for good."""

    def __init__(self, folder: Path) -> None:
        with (folder / "plain").open("a+b") as file:
            file.truncate(MAX_BYTES)
            self._memory = mmap.mmap(file.fileno(), MAX_BYTES)
        self._offsets: dict[str, int] = {}
        self._free: list[int] = []

    def put(self, key: str, data: memoryview, *, ttl_s: float) -> str:
        offset = self._free.pop() if self._free else len(self._offsets) * data.nbytes
        self._memory[offset : offset + data.nbytes] = data
        self._offsets[key] = offset
        return str(offset)

    def get(self, address: str, num_bytes: int, *, timeout_s: float) -> memoryview:
        offset = int(address)
        return memoryview(self._memory)[offset : offset + num_bytes]

    def drop(self, key: str) -> None:
        self._free.append(self._offsets.pop(key))
        if not self._offsets:  # the next tensor may be of another size
            self._free.clear()

    def close(self) -> None:
        pass


Way = Transport | SafetensorsFolder | PlainMemory


def open_ways(folder: Path) -> dict[str, Way]:
    """Name -> one side; the folder is on tmpfs, which is the best case for files."""
    return {
        "plain": PlainMemory(folder),
        "shm": ShmTransport(max_bytes=MAX_BYTES),
        "tcp": TcpTransport(host="127.0.0.1", max_bytes=MAX_BYTES, timeout_s=TIMEOUT_S),
        "file": FileTransport(directory=str(folder), max_bytes=MAX_BYTES),
        "safetensors": SafetensorsFolder(folder),
    }


def take(way: Any, address: str, num_bytes: int) -> tuple[float, float, float, str]:
    """Take, then read every byte: seconds of each, when it was over, and the checksum."""
    started = time.perf_counter()
    data = way.get(address, num_bytes, timeout_s=TIMEOUT_S)
    taken = time.perf_counter()
    found = checksum(data)
    read = time.perf_counter()
    return taken - started, read - taken, read, found


def main(folder: Path) -> None:
    """Answer lines `WAY ADDRESS BYTES` until the input ends."""
    ways = open_ways(folder)
    print("ready", flush=True)
    for line in sys.stdin:
        name, address, num_bytes = line.split()
        print(*take(ways[name], address, int(num_bytes)), flush=True)
    for way in ways.values():
        way.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
