"""Some 300 generated files, each with what must become of it; none takes much memory or long, under `ulimit -v`."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("av", reason="the extra video is not installed")

from tests.faults.media_battery.foreign import FOREIGN_PICTURES
from tests.faults.media_battery.hostile import HOSTILE
from tests.faults.media_battery.outcomes import taken
from tests.faults.media_battery.sounds import SOUNDS
from tests.faults.media_battery.valid import VALID
from tests.faults.media_battery.videos import VIDEOS
from tests.unit.media.pictures import uniform_png

MAX_GROWTH_BYTES = 64 * 2**20
MAX_CPU_S = 2.0
MAX_EXTRA_ADDRESS_SPACE_BYTES = 400 * 2**20
WARM_UP = (
    *("png", "jpeg", "webp", "gif", "bmp", "tiff", "avif"),
    *("mp4", "mkv", "webm vp9", "wav", "flac", "mp3 of two seconds", "ogg opus"),
)
CONTROL = {"png of 25 megapixels": (taken(5000, 5000), lambda: uniform_png(5000, 5000))}
"""Within the limits, and larger than any other: its pixels must show in the numbers."""
PICTURES = VALID | HOSTILE | FOREIGN_PICTURES | CONTROL

PROBE = """
import asyncio, json, re, resource, sys, time
from pathlib import Path
from chiasm.errors import MediaError
from chiasm.media.audio.decode import decode_audio
from chiasm.media.ingest import MediaIngest, MediaReference
from chiasm.media.picture.decode import decode_picture
from chiasm.media.video.frames import sample_video
from chiasm.media.video.sampling import SamplingRule
from chiasm.settings import MediaSettings

def status_bytes(field):
    return int(re.search(field + r":\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1)) * 1024

def decoded(kind, data, settings):
    if kind == "image":
        return decode_picture(data, settings).size
    frames = [frame.pixels for frame in sample_video(data, SamplingRule(fps=4), settings)[1]]
    return frames[0].shape[1::-1]

async def outcome(ingest, settings, kind, file):
    try:
        if kind == "audio":
            item = await ingest.listen(MediaReference(kind, f"file://{file}", "/0"), 60)
            samples = decode_audio(item.data, item.header.rate, settings)
            return f"{len(samples)} x {item.header.num_channels} at {item.header.rate}"
        [item] = await ingest.collect([MediaReference(kind, f"file://{file}", "/0")], 60)
        size = decoded(kind, item.source.data, settings)
    except MediaError as error:
        return error.code
    assert size == (item.width, item.height), (size, item.width, item.height)
    return f"{item.width}x{item.height}"

async def main(root, max_extra_bytes):
    kinds, warm_up = json.loads((Path(root) / "kinds.json").read_text())
    settings = MediaSettings(allowed_root=root)
    ingest = MediaIngest(settings, None)
    for number in warm_up:
        await outcome(ingest, settings, kinds[number], Path(root) / str(number))
    limit = status_bytes("VmSize") + max_extra_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    before, found = status_bytes("VmRSS"), []
    for number, kind in enumerate(kinds):
        print(number, file=sys.stderr)
        Path("/proc/self/clear_refs").write_text("5")
        started = time.process_time()
        code = await outcome(ingest, settings, kind, Path(root) / str(number))
        found.append((code, status_bytes("VmHWM") - before, time.process_time() - started))
    await ingest.aclose()
    print(json.dumps(found))

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What one process made of all files, by their names: outcome, growth in bytes, seconds of CPU time."""
    root = tmp_path_factory.mktemp("battery")
    tables = (("image", PICTURES), ("video", VIDEOS), ("audio", SOUNDS))
    cases = [(kind, *case) for kind, table in tables for case in table.items()]
    for number, (_, _, (_, make)) in enumerate(cases):
        (root / str(number)).write_bytes(make())
    warm_up = [number for number, (_, name, _) in enumerate(cases) if name in WARM_UP]
    (root / "kinds.json").write_text(json.dumps([[kind for kind, _, _ in cases], warm_up]))
    command = [sys.executable, "-c", PROBE, str(root), str(MAX_EXTRA_ADDRESS_SPACE_BYTES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip([name for _, name, _ in cases], json.loads(done.stdout), strict=True))


def test_each_file_meets_its_outcome(found):
    expected = {name: outcome for name, (outcome, _) in (PICTURES | VIDEOS | SOUNDS).items()}
    assert len(expected) == len(PICTURES) + len(VIDEOS) + len(SOUNDS) >= 200
    wrong = {name: (is_, expected[name]) for name, (is_, _, _) in found.items() if is_ != expected[name]}
    assert wrong == {}


def test_none_takes_much_memory(found):
    assert {name for name, (_, growth, _) in found.items() if growth > MAX_GROWTH_BYTES} == set(CONTROL)


def test_none_takes_long(found):
    assert {name: cpu_s for name, (_, _, cpu_s) in found.items() if cpu_s > MAX_CPU_S} == {}
