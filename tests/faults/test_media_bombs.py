"""Small files that unfold to gigabytes are refused from their headers, with flat memory, many at once."""

import json
import struct
import subprocess
import sys

import pytest

from tests.unit.media.pictures import chunk, encode, gradient, png, uniform_png, with_frame_size

MAX_GROWTH_BYTES = 50 * 2**20
MAX_EXTRA_ADDRESS_SPACE_BYTES = 400 * 2**20

PROBE = """
import asyncio, json, re, resource, sys
from pathlib import Path
from chiasm.errors import MediaError
from chiasm.media.ingest import MediaIngest, MediaReference
from chiasm.media.picture.decode import decode_picture
from chiasm.settings import MediaSettings

def status_bytes(field):
    return int(re.search(field + r":\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1)) * 1024

async def one(ingest, file):
    try:
        await ingest.collect([MediaReference("image", f"file://{file}", "/0")], 60)
    except MediaError as error:
        return error.code
    return "accepted"

async def main(root, copies, max_extra_bytes):
    files = sorted(Path(root).iterdir())
    settings = MediaSettings(allowed_root=root)
    ingest = MediaIngest(settings, None)
    await one(ingest, files[0])
    Path("/proc/self/clear_refs").write_text("5")
    before = status_bytes("VmRSS")
    limit = status_bytes("VmSize") + max_extra_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    codes = await asyncio.gather(*(one(ingest, file) for file in files for _ in range(copies)))
    for file in files:
        try:
            decode_picture(file.read_bytes(), settings)
            codes.append("accepted")
        except MediaError as error:
            codes.append(error.code)
    await ingest.aclose()
    print(json.dumps({"codes": sorted(set(codes)), "count": len(codes), "growth": status_bytes("VmHWM") - before}))

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""


def lying(data, at, layout, *numbers):
    return data[:at] + struct.pack(layout, *numbers) + data[at + struct.calcsize(layout) :]


def tiff_stating(width, height):
    data = encode(gradient(16, 16), "tiff")
    for tag, value in ((256, width), (257, height)):
        at = data.index(struct.pack("<HHI", tag, 4, 1))
        data = lying(data, at + 8, "<I", value)
    return data


def avif_stating(width, height):
    data = encode(gradient(64, 64), "avif")
    return lying(data, data.index(b"ispe") + 8, ">II", width, height)


BOMBS = {
    "20000 squared": (uniform_png, (20_000, 20_000)),
    "40000 squared": (uniform_png, (40_000, 40_000)),
    "a header without pixels": (lambda: png(60_000, 60_000, chunk(b"IDAT", b"x\x9c\3\0\0\0\0\1")), ()),
    "jpeg frame": (lambda: with_frame_size(encode(gradient(640, 480), "jpeg"), 65_500, 65_500), ()),
    "jpeg progressive": (
        lambda: with_frame_size(encode(gradient(640, 480), "jpeg", progressive=True), 65_500, 65_500),
        (),
    ),
    "webp canvas": (
        lambda: lying(encode(gradient(), "webp", exif=b"MM\0*" + bytes(8)), 24, "<IHB", 0xFFFFFF, 0xFFFF, 0xFF),
        (),
    ),
    "gif screen": (lambda: lying(encode(gradient(), "gif"), 6, "<HH", 65_535, 65_535), ()),
    "bmp": (lambda: lying(encode(gradient(), "bmp"), 18, "<ii", 60_000, 60_000), ()),
    "tiff": (tiff_stating, (60_000, 60_000)),
    "avif": (avif_stating, (65_000, 65_000)),
}


@pytest.fixture(scope="module")
def bombs(tmp_path_factory):
    root = tmp_path_factory.mktemp("bombs")
    for name, (make, arguments) in BOMBS.items():
        data = make(*arguments)
        assert len(data) < 6 * 2**20, name
        (root / name.replace(" ", "-")).write_bytes(data)
    return root


def test_eight_of_each_bomb_at_once_leave_memory_flat(bombs):
    command = [sys.executable, "-c", PROBE, str(bombs), "8", str(MAX_EXTRA_ADDRESS_SPACE_BYTES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["count"] == len(BOMBS) * 9
    assert set(result["codes"]) <= {"media_too_large", "media_undecodable"}
    assert result["growth"] < MAX_GROWTH_BYTES


def test_the_probe_would_notice(tmp_path):
    """A picture within the limits is accepted and its pixels do show in the numbers."""
    (tmp_path / "large.png").write_bytes(uniform_png(6000, 6000))
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(tmp_path), "1", str(2**30)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    result = json.loads(done.stdout)
    assert result["codes"] == ["accepted"]
    assert result["growth"] > MAX_GROWTH_BYTES
