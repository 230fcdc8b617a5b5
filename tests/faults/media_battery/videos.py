"""Videos that are right, cut off, or made of absurd boxes; those whose frames are all found are taken as they are."""

import random
import struct

from tests.faults.media_battery.outcomes import BROKEN, FOREIGN, LARGE, lying, taken
from tests.unit.media.pictures import encode, gradient
from tests.unit.media.video.clips import clip

OF_CLIP = taken(96, 64)
MP4 = clip(24)
MKV = clip(24, container="matroska")
FTYP = b"\0\0\0\x14ftypisom\0\0\2\0isom"
EBML = MKV[: MKV.index(b"\x18\x53\x80\x67")]


def box(kind, content=b"", size=None):
    return struct.pack(">I", len(content) + 8 if size is None else size) + kind + content


def patched(kind, skip, layout, *numbers):
    """The clip with numbers written over, so many bytes after a box's name."""
    return lying(MP4, MP4.index(kind) + 4 + skip, layout, *numbers)


def nested(kind, depth):
    data = b""
    for _ in range(depth):
        data = box(kind, data)
    return FTYP + data


def resized(kind, size):
    return lying(MP4, MP4.index(kind) - 4, ">I", size)


VALID = {
    "mp4": (OF_CLIP, lambda: MP4),
    "mov": (OF_CLIP, lambda: clip(12, container="mov")),
    "mkv": (OF_CLIP, lambda: MKV),
    "webm vp9": (OF_CLIP, lambda: clip(6, container="webm", codec="libvpx-vp9")),
    "mp4 turned": (taken(64, 96), lambda: clip(12, degrees=90)),
    "mp4 with sound": (OF_CLIP, lambda: clip(12, sound=True)),
    "mp4 of one frame": (OF_CLIP, lambda: clip(1)),
    "mkv of uneven times": (OF_CLIP, lambda: clip(3, container="matroska", times_ms=[0, 40, 5000], b_frames=0)),
    "mp4 and bytes after it": (OF_CLIP, lambda: MP4 + bytes(5000)),
}
CUT = {
    "mp4 cut within its first box": (BROKEN, lambda: MP4[:20]),
    "mp4 cut before its index": (BROKEN, lambda: MP4[: MP4.index(b"moov") - 4]),
    "mp4 cut within its index": (FOREIGN, lambda: MP4[: MP4.index(b"stbl")]),
    "mkv cut within its header": (BROKEN, lambda: MKV[:40]),
    "mkv cut after its header": (BROKEN, lambda: EBML),
    "mp4 of noise": (BROKEN, lambda: FTYP + random.Random(3).randbytes(2**16)),
    "mkv of noise": (BROKEN, lambda: EBML + random.Random(3).randbytes(2**16)),
    "mp4 pixels overwritten": (BROKEN, lambda: blank("mdat", 3000)),
    "mp4 of its brand alone": (BROKEN, lambda: FTYP),
    "mp4 of sound only": (FOREIGN, lambda: clip(sound=True, picture=False)),
    "png as a video": (FOREIGN, lambda: encode(gradient(), "png")),
    "gif as a video": (FOREIGN, lambda: encode(gradient(), "gif")),
    "avif as a video": (FOREIGN, lambda: encode(gradient(), "avif")),
    "empty video": (FOREIGN, lambda: b""),
}
BOXES = {
    "mp4 index of 4 GiB": (OF_CLIP, lambda: resized(b"moov", 2**32 - 1)),
    "mp4 index of no size": (BROKEN, lambda: resized(b"moov", 2)),
    "mp4 of 4 billion samples": (BROKEN, lambda: patched(b"stsz", 8, ">I", 2**32 - 1)),
    "mp4 of 4 billion equal samples": (BROKEN, lambda: patched(b"stsz", 4, ">II", 1, 2**32 - 1)),
    "mp4 of 4 billion times": (LARGE, lambda: patched(b"stts", 4, ">I", 2**32 - 1)),
    "mp4 samples repeated 4 billion times": (OF_CLIP, lambda: patched(b"stts", 8, ">I", 2**32 - 1)),
    "mp4 of 4 billion chunks": (OF_CLIP, lambda: patched(b"stco", 4, ">I", 2**32 - 1)),
    "mp4 chunks beyond the end": (BROKEN, lambda: patched(b"stco", 8, ">I", 2**31)),
    "mp4 of 4 billion descriptions": (BROKEN, lambda: patched(b"stsd", 4, ">I", 2**32 - 1)),
    "mp4 of no time scale": (OF_CLIP, lambda: patched(b"mdhd", 12, ">I", 0)),
    "mp4 edits beyond the end": (OF_CLIP, lambda: patched(b"elst", 4, ">I", 2**32 - 1)),
    "mp4 boxes nested 3000 deep": (BROKEN, lambda: nested(b"moov", 3000)),
    "mp4 tracks nested 3000 deep": (BROKEN, lambda: nested(b"trak", 3000)),
    "mp4 of 100,000 empty boxes": (BROKEN, lambda: FTYP + box(b"free") * 100_000),
    "mp4 of 100,000 tracks": (LARGE, lambda: FTYP + box(b"moov", box(b"trak") * 100_000)),
    "mp4 of an unknown codec": (FOREIGN, lambda: MP4.replace(b"avc1", b"zzzz")),
    "mp4 with a damaged codec record": (BROKEN, lambda: patched(b"avcC", 0, ">QQ", 0, 0)),
    "mkv segment of 2**56": (OF_CLIP, lambda: mkv_sized(2**56 - 2)),
    "mkv of endless elements": (BROKEN, lambda: EBML + b"\x18\x53\x80\x67\x01" + b"\xff" * 7 + b"\xec\x80" * 100_000),
    "mkv nested 3000 deep": (BROKEN, lambda: EBML + b"\x18\x53\x80\x67\x01\xff\xff\xff\xff\xff\xff\xff" * 3000),
    "mkv element of 2**56": (BROKEN, lambda: EBML + b"\x18\x53\x80\x67\xff" + b"\x16\x54\xae\x6b\x01" + b"\xfe" * 7),
    "mp4 frames stated as 65000 squared": (OF_CLIP, lambda: patched(b"avc1", 24, ">HH", 65_000, 65_000)),
}


def blank(kind, num_bytes):
    at = MP4.index(kind.encode()) + 4
    return MP4[:at] + bytes(num_bytes) + MP4[at + num_bytes :]


def mkv_sized(size):
    at = MKV.index(b"\x18\x53\x80\x67") + 4
    return lying(MKV, at, ">Q", 1 << 56 | size)


VIDEOS = VALID | CUT | BOXES
