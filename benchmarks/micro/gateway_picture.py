"""What a picture's request must cost a gateway: each step alone, in CPU time, on this machine.

    python -m benchmarks.micro.gateway_picture --name gateway_picture

Writes `benchmarks/notes/NAME.json`. The sum of what nobody can leave out (receiving, decoding, hashing) is the limit
to which the CPU time of a whole request in `gateway_alone` is compared.
"""

import argparse
import hashlib
import json
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.gateway_alone import bodies
from chiasm.gateway.exchange.payloads import CutBody
from chiasm.launch.memory import settle
from chiasm.media.data_url import decode_payload
from chiasm.media.identity import content_identity
from chiasm.media.picture.header import read_header
from chiasm.media.spool import Spool
from chiasm.settings import MediaSettings

NOTES = Path(__file__).parents[1] / "notes"
ROUNDS = 60
NEEDED = ("receive", "base64", "sha256")


def cpu_ms(work: Callable[[], object]) -> float:
    """CPU time of this thread, user and system; the smallest of three medians, since neighbours only add."""
    medians = []
    for _ in range(3):
        times = []
        for _ in range(ROUNDS):
            before_s = time.thread_time()
            work()
            times.append(time.thread_time() - before_s)
        medians.append(statistics.median(times))
    return min(medians) * 1e3


class Receiving:
    """A body that comes over loopback into a buffer that is there, as large reads as the kernel allows."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._buffer = bytearray(len(body))
        listener = socket.create_server(("127.0.0.1", 0))
        self._client = socket.create_connection(listener.getsockname())
        self._server, _ = listener.accept()
        listener.close()

    def __call__(self) -> None:
        sending = threading.Thread(target=self._client.sendall, args=(self._body,))
        sending.start()
        view = memoryview(self._buffer)
        while view:
            view = view[self._server.recv_into(view) :]
        sending.join()

    def close(self) -> None:
        self._client.close()
        self._server.close()


def measure() -> dict[str, float]:
    """Milliseconds of CPU time by step."""
    settle()  # as a serving process keeps memory
    body = bodies()["1 picture"]
    cut = CutBody(body)
    (payload,) = cut._payloads  # what the gateway hands to its threads
    data = decode_payload(payload, 2**30)
    receiving = Receiving(body)
    steps = {
        "receive": cpu_ms(receiving),
        "a zeroed buffer": cpu_ms(lambda: bytearray(len(body))),
        "cut the payload": cpu_ms(lambda: CutBody(body)),
        "base64": cpu_ms(lambda: decode_payload(payload, 2**30)),
        "sha256": cpu_ms(lambda: content_identity(data)),
        "header": cpu_ms(lambda: read_header(data)),
    }
    receiving.close()
    spool = Spool(MediaSettings())
    identity = hashlib.sha256(data).hexdigest()
    steps["spool file"] = cpu_ms(lambda: spool.release(spool.hold(identity, data)))
    spool.close()
    steps["needed"] = sum(steps[step] for step in NEEDED)
    return {step: round(ms, 4) for step, ms in steps.items()}


def main() -> None:
    """Measure and write a note."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="gateway_picture")
    args = parser.parse_args()
    described = machine.describe()
    machine.prefer(os.getpid())
    result: dict[str, Any] = {"machine": described, "cpu_ms": measure()}
    print(json.dumps(result["cpu_ms"], indent=1))
    path = NOTES / f"{args.name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: benchmarks/notes/{path.name}")


if __name__ == "__main__":
    main()
