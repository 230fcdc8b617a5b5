"""Audio that is right, cut off, or lies about itself; what is there is taken, whatever headers claim."""

import random
import struct

from tests.faults.media_battery.outcomes import BROKEN, FOREIGN, LARGE, inserted, lying
from tests.unit.media.audio.sounds import sound, tone, wav
from tests.unit.media.pictures import encode, gradient
from tests.unit.media.video.clips import clip

WAV = wav(tone())
FLAC = sound("flac", tone(seconds=3))
MP3 = sound("mp3", tone(seconds=2))
OGG = sound("ogg", tone(rate=48_000), 48_000)
OF_WAV = "16000 x 1 at 16000"


def heard(num_samples, num_channels=1, rate=16_000):
    """Accepted, and decoded to so many samples of each channel."""
    return f"{num_samples} x {num_channels} at {rate}"


def header(*, kind=1, channels=1, rate=16_000, bits=16, data=b"\0\0" * 100, stated=None):
    """WAVE with any numbers in its header."""
    width = channels * bits // 8
    head = struct.pack("<HHIIHH", kind, channels, rate, rate * width % 2**32, width % 2**16, bits)
    size = len(data) if stated is None else stated
    return b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0" + head + b"data" + struct.pack("<I", size) + data


def mp3_with_tag(num_bytes, size=None):
    """An ID3 tag of a size, which may be another than stated; seven bits of each byte count."""
    stated = num_bytes if size is None else size
    parts = bytes(stated >> shift & 0x7F for shift in (21, 14, 7, 0))
    return b"ID3\x04\0\0" + parts + bytes(num_bytes) + MP3


def stream_info(at, layout, *numbers):
    """FLAC whose first block of facts is written over."""
    return lying(FLAC, 8 + at, layout, *numbers)


def total_samples(number):
    (old,) = struct.unpack_from(">Q", FLAC, 8 + 10)
    return stream_info(10, ">Q", old & ~(2**36 - 1) | number)


VALID = {
    "wav": (OF_WAV, lambda: WAV),
    "wav of two channels, 24 bits": (heard(16_000, 2), lambda: wav([tone(), tone()], num_bytes=3)),
    "flac": (heard(48_000), lambda: FLAC),
    "mp3 of two seconds": (heard(32_000), lambda: MP3),
    "ogg opus": (heard(48_000, rate=48_000), lambda: OGG),
    "ogg flac": (heard(16_000), lambda: sound("ogg", tone(), codec="flac")),
    "mp3 after a tag of 1 MB": (heard(32_000), lambda: mp3_with_tag(2**20)),
    "wav of endless size, as streams are": (heard(100), lambda: header(stated=2**32 - 1)),
    "wav with junk after it": (OF_WAV, lambda: WAV + bytes(5000)),
    "wav of one sample": (heard(1), lambda: header(data=b"\1\0")),
}
CUT = {
    "wav of no samples": (BROKEN, lambda: header(data=b"")),
    "wav of half a sample": (BROKEN, lambda: header(data=b"\0")),
    "wav cut within its header": (BROKEN, lambda: WAV[:24]),
    "wav of twelve bytes": (BROKEN, lambda: WAV[:12]),
    "flac cut off": (BROKEN, lambda: FLAC[: len(FLAC) // 2]),
    "flac of its header": (BROKEN, lambda: FLAC[:42]),
    "flac of its first bytes": (BROKEN, lambda: FLAC[:4]),
    "mp3 of a tag only": (BROKEN, lambda: mp3_with_tag(100)[:110]),
    "ogg of its first page": (BROKEN, lambda: OGG[:47]),
    "ogg of its first bytes": (BROKEN, lambda: OGG[:4]),
    "flac of noise": (BROKEN, lambda: FLAC[:42] + random.Random(4).randbytes(2**16)),
    "ogg of noise": (BROKEN, lambda: OGG[:47] + random.Random(5).randbytes(2**16)),
    "mp3 of noise": (BROKEN, lambda: b"ID3" + random.Random(6).randbytes(2**16)),
    "empty sound": (FOREIGN, lambda: b""),
    "png sent as sound": (FOREIGN, lambda: encode(gradient(), "png")),
    "mp4 as sound": (FOREIGN, lambda: clip(sound=True, picture=False)),
    "text as sound": (FOREIGN, lambda: b"la la la" * 20),
}
LYING = {
    "wav of 65535 channels": (BROKEN, lambda: header(channels=65_535)),
    "wav of 9 channels": (LARGE, lambda: header(channels=9, data=bytes(1800))),
    "wav of no channels": (BROKEN, lambda: header(channels=0)),
    "wav of no rate": (BROKEN, lambda: header(rate=0)),
    "wav of 4 GHz": (BROKEN, lambda: header(rate=2**32 - 1)),
    "wav of 2 GHz": (LARGE, lambda: header(rate=2**31 - 1)),
    "wav of 1 Hz": (LARGE, lambda: header(rate=1)),
    "wav of 0 bits": (FOREIGN, lambda: header(bits=0)),
    "wav of 65535 bits": (FOREIGN, lambda: header(bits=65_535)),
    "wav of an unknown codec": (FOREIGN, lambda: header(kind=0x4242)),
    "wav of mp3": (FOREIGN, lambda: header(kind=0x55, data=MP3)),
    "wav of twenty-one minutes": (LARGE, lambda: header(rate=8000, bits=8, data=bytes(8000 * 1260))),
    "wav header of 4 GB": (BROKEN, lambda: lying(WAV, 16, "<I", 2**32 - 1)),
    "wav of nested RIFF": (BROKEN, lambda: WAV[:12] * 20_000),
    "wav of 100,000 empty chunks": (OF_WAV, lambda: inserted(WAV, 12, b"junk\0\0\0\0" * 100_000)),
    "flac of 68 billion samples": (BROKEN, lambda: total_samples(2**36 - 1)),
    "flac of an unknown length": (heard(48_000), lambda: total_samples(0)),
    "flac of 0 Hz": (BROKEN, lambda: stream_info(10, ">I", 0x00000170)),
    "flac of a picture of 16 MB": (BROKEN, lambda: inserted(FLAC, 42, b"\x06\xff\xff\xff" + bytes(1000))),
    "flac of 20,000 blocks": (heard(48_000), lambda: inserted(FLAC, 42, b"\x01\0\0\0" * 20_000)),
    "mp3 tag of 256 MB": (BROKEN, lambda: mp3_with_tag(100, 2**28 - 1)),
    "mp3 of nested tags": (heard(32_000), lambda: mp3_with_tag(0)[:10] * 5000 + MP3),
    "mp3 of sync bytes": (BROKEN, lambda: b"\xff\xfb\x90\x44" + b"\xff" * 200_000),
    "ogg of endless pages": (BROKEN, lambda: OGG[:47] + (b"OggS" + bytes(22) + b"\0") * 100_000),
    "ogg that ends after an age": (
        heard(47_688, rate=48_000),
        lambda: lying(OGG, OGG.rindex(b"OggS") + 6, "<q", 2**62),
    ),
}
SOUNDS = VALID | CUT | LYING
