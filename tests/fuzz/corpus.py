"""Seeds for each target, generated: every format and the forms that a parser treats apart."""

import base64
import random
import struct

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.unit.media.audio.sounds import sound, tone, wav
from tests.unit.media.pictures import FORMATS, animation, encode, exif_block, gradient, noise, png
from tests.unit.media.video.clips import clip

_URLS = (
    "https://img.example/a/b.png?x=1", "http://a.b.example:8080/", "https://10.0.0.1/x", "https://[::1]:443/", "https://127.1/",
    "https://0x7f.0.0.1/", "https://user@img.example/", "https://img.example./#f", "https://xn--bcher-kva.example/",
    "https://img.example:99999/", "https://[::ffff:10.0.0.1]/",
    "https://[fe80::1%25eth0]/", "https://[64:ff9b::a00:1]:8443/", "file:///etc/passwd", "https:\\\\img.example/",
)  # fmt: skip


def pictures() -> list[bytes]:
    exif = exif_block(6)[6:]
    found = [encode(noise(40, 30), kind) for kind in FORMATS]
    found += [encode(gradient(), kind, exif=exif) for kind in ("jpeg", "png", "webp")]
    found += [encode(gradient(40, 30), "jpeg", progressive=True), encode(gradient().convert("CMYK"), "jpeg")]
    found += [encode(gradient().convert(mode), "png") for mode in ("RGBA", "LA", "L", "P", "1")]
    found += [encode(Image.fromarray(np.arange(384, dtype=np.uint16).reshape(16, 24)), "png"), png(3, 2)]
    found += [encode(gradient(), "tiff", compression=way) for way in ("tiff_lzw", "jpeg", "tiff_adobe_deflate")]
    found += _seldom()
    return [*found, *(animation(kind) for kind in ("gif", "webp", "apng"))]


def _seldom() -> list[bytes]:
    """Forms with code of their own: profiles and texts in PNG, transparent colours, old and unusual headers."""
    said = PngInfo()
    said.add_itxt("Title", "a picture")
    deep = Image.fromarray(np.arange(384, dtype=np.uint16).reshape(16, 24))
    found = [encode(gradient(), "png", icc_profile=b"profile" * 9), encode(gradient(), "png", pnginfo=said)]
    found += [encode(gradient(), "png", transparency=(1, 2, 3)), encode(gradient().convert("L"), "png", transparency=7)]
    found += [encode(deep, "png", transparency=300), encode(gradient().convert("LA"), "tiff")]
    found += [encode(deep, "tiff", tiffinfo={262: 0}), encode(gradient().convert("F"), "tiff")]
    found += [encode(gradient(), "webp", lossless=True), encode(gradient().convert("RGBA"), "webp")]
    core = struct.pack("<IHHHH", 12, 2, 2, 1, 24) + bytes(range(16))
    return [*found, b"BM" + struct.pack("<IHHI", 14 + len(core), 0, 0, 26) + core]


def seeds(target: str) -> list[bytes]:
    """The corpus of a target."""
    if target == "url":
        return [text.encode() for text in _URLS]
    if target == "data_url":
        heads = ("data:image/png;base64,", "data:image/jpeg;charset=utf-8;base64,", "data:;base64,", "data:image/gif,")
        return [head.encode() + base64.b64encode(b"payload" * 9) for head in heads]
    if target == "video":
        ways = (
            {},
            {"b_frames": 0, "degrees": 90},
            {"degrees": 180, "size": (14, 14)},
            {"sound": True},
            {"container": "matroska"},
        )
        return [clip(6, **({"size": (32, 32)} | way)) for way in ways]
    if target == "audio":
        short = tone(seconds=0.2)
        return [wav(short), wav([short, short], num_bytes=3), *(sound(kind, short) for kind in ("flac", "mp3", "ogg"))]
    found = pictures()
    return [data for data in found if data.startswith(b"\x89PNG")] if target == "png" else found


def mutated(seed: bytes, dice: random.Random) -> bytes:
    """A seed with some damage: bytes, bits, numbers, pieces; half of it where the structure is."""
    data = bytearray(seed)
    for _ in range(dice.choice((1, 1, 2, 4, 12))):
        if not data:
            break
        at = dice.randrange(min(len(data), 200 if dice.random() < 0.5 else len(data)))
        how = dice.randrange(6)
        if how == 0:
            data[at] = dice.randrange(256)
        elif how == 1:
            data[at] ^= 1 << dice.randrange(8)
        elif how == 2:
            data[at : at + 4] = dice.choice((0, 1, 2**31 - 1, 2**32 - 1, 65535)).to_bytes(
                4, dice.choice(("big", "little"))
            )
        elif how == 3:
            del data[at : at + dice.randint(1, 40)]
        elif how == 4:
            data[at:at] = data[at : at + dice.randint(1, 40)]
        else:
            del data[at:]
    return bytes(data)
