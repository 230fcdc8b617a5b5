"""Where does the time to the first token go? One picture, ten pictures and a video of 10 s, one request at a time.

Pictures are JPEG files as large as a camera's preview; the packaged model makes 256 visual tokens of one.
"""

import argparse
from collections.abc import Callable
from typing import Any

import msgspec
import pybase64

from benchmarks.epd.fleets import fleets
from benchmarks.epd.requests import TEXT, body
from benchmarks.sending import send
from chiasm.bench.grid.servers import Server
from chiasm.bench.metrics.stages import stage_breakdown
from chiasm.bench.workload.classes import RequestClass
from chiasm.bench.workload.pictures import picture
from chiasm.bench.workload.videos import VideoSource
from chiasm.observability.receipt import STAGES

REQUESTS = 12
NUM_FIRST = 2
BEFORE_ENCODER = STAGES[: STAGES.index("encode_queue")]
PICTURE_SIZE = (2400, 1080)
VIDEO = RequestClass(videos=1, video_width=640, video_height=360, video_seconds=10)


async def stages(args: argparse.Namespace) -> dict[str, Any]:
    """A breakdown for each topology and kind of request."""
    count = NUM_FIRST + (args.requests or REQUESTS)
    makers = _makers()
    rows = []
    async with fleets({name: (name,) for name in args.topologies}) as running:
        for kind, make in makers.items():
            bodies = [make(number) for number in range(count)]
            for name, server in running.items():
                rows.append({"kind": kind, "topology": name} | await _row(server, bodies))
    return {"breakdown": rows, "asked": count - NUM_FIRST}


async def _row(server: Server, bodies: list[bytes]) -> dict[str, Any]:
    records = (await send(server.target, bodies, concurrency=1)).records
    failed = {record.outcome for record in records if not record.is_finished}
    if failed:
        raise RuntimeError(f"requests failed: {', '.join(failed)}")
    found = stage_breakdown(records[NUM_FIRST:])
    assert found is not None
    before_ms = sum(found.stages_ms.get(stage, 0.0) for stage in BEFORE_ENCODER)
    return msgspec.to_builtins(found) | {"before_encoder_share": before_ms / found.ttft_ms}


def _makers() -> dict[str, Callable[[int], bytes]]:
    """A new request for each number; media that nobody has seen."""
    videos = VideoSource(VIDEO, "stages")

    def shown(images: int, number: int) -> bytes:
        asked = [picture(f"stages {images} {number} {place}", PICTURE_SIZE, "jpeg") for place in range(images)]
        urls = ["data:image/jpeg;base64," + pybase64.b64encode(one).decode() for one in asked]
        return body(urls, TEXT.format(number), 1, chiasm={"receipt": True})

    def watched(number: int) -> bytes:
        url = "data:video/mp4;base64," + pybase64.b64encode(videos.next()).decode()
        return body([], TEXT.format(number), 1, video=url, chiasm={"receipt": True})

    return {"1 picture": lambda n: shown(1, n), "10 pictures": lambda n: shown(10, n), "10 s of video": watched}
