"""The plan of a cell: every request with its time and its body, on disk before the first one leaves."""

import mmap
from pathlib import Path
from typing import Literal

import msgspec

from chiasm.bench.workload.classes import PATHS, Kind

Phase = Literal["warmup", "measured", "cooldown"]

SCHEDULE = "schedule.jsonl"
BODIES = "bodies.bin"


class PlannedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the schedule. The body lies in the file of bodies, from `offset`."""

    index: int
    request_class: str
    kind: Kind
    phase: Phase
    at_s: float
    offset: int
    num_body_bytes: int
    output_tokens: int
    cancel_after_s: float | None = None


class Plan:
    """A plan on disk, for reading. Bodies are views of the file; close it after the last one was sent."""

    def __init__(self, folder: Path) -> None:
        decoder = msgspec.json.Decoder(PlannedRequest)
        self.requests = [decoder.decode(line) for line in (folder / SCHEDULE).read_bytes().splitlines()]
        with (folder / BODIES).open("rb") as file:
            self._bodies = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self._bodies.madvise(mmap.MADV_WILLNEED)
        self._view = memoryview(self._bodies)

    def head(self, request: PlannedRequest, host: str, prefix: str, headers: bytes) -> bytes:
        """The head of the HTTP request."""
        line = f"POST {prefix}{PATHS[request.kind]} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        return line.encode() + headers + b"Content-Length: %d\r\n\r\n" % request.num_body_bytes

    def body(self, request: PlannedRequest) -> memoryview:
        """The body, not copied."""
        return self._view[request.offset : request.offset + request.num_body_bytes]
