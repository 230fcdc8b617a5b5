"""Pictures that are cut off, lie about themselves, or unfold.

Where a file is taken all the same, the pixels it states are there, or are filled up as common decoders do, and the lie
must have cost nothing.
"""

import struct
import zlib

from tests.faults.media_battery.outcomes import BROKEN, FOREIGN, LARGE, inserted, lying, taken
from tests.unit.media.pictures import (
    FORMATS,
    animation,
    chunk,
    encode,
    gradient,
    noise,
    png,
    uniform_png,
    with_frame_size,
    without_chunk,
)

RGB = gradient()
NOISE = noise()  # which does not compress: every byte matters
ROWS = chunk(b"IDAT", zlib.compress((b"\0" + bytes(72)) * 16))
ZEROS = zlib.compress(bytes(200 * 2**20), 9)


def cut(kind, share):
    data = encode(NOISE, kind)
    return data[: int(len(data) * share)]


def cut_and_ended(picture, **options):
    data = encode(picture, "jpeg", **options)
    return data[: len(data) // 2] + b"\xff\xd9"


def short_png(depth, colour, bytes_per_row, interlace):
    """Fifteen rows of sixteen; interlaced they are too few as well."""
    rows = chunk(b"IDAT", zlib.compress(bytes(15 * (1 + bytes_per_row))))
    palette = [chunk(b"PLTE", bytes(768))] if colour == 3 else []
    data = png(24, 16, *palette, rows, depth=depth, colour=colour)
    head = data[12:28] + bytes([interlace])
    return data[:28] + bytes([interlace]) + zlib.crc32(head).to_bytes(4, "big") + data[33:]


def rgb_png(*before, size=(24, 16), rows=ROWS):
    return png(*size, *before, rows, depth=8, colour=2)


def with_crc_broken(data, kind):
    end = data.index(kind) + 4 + struct.unpack(">I", data[data.index(kind) - 4 : data.index(kind)])[0]
    return lying(data, end, ">I", 0)


def segment(marker, content):
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def in_jpeg(*segments):
    return inserted(encode(RGB, "jpeg"), 2, b"".join(segments))


def many_scans():
    data = encode(RGB, "jpeg", progressive=True)
    at = data.rindex(b"\xff\xda")
    return data[:at] + data[at:-2] * 3000 + data[-2:]


def exif_loop():
    """Directories that name themselves as the next one, and as the EXIF, GPS and interoperability ones."""
    links = b"".join(struct.pack("<HHII", tag, 4, 1, 8) for tag in (0x8769, 0x8825, 0xA005))
    return b"Exif\0\0II*\0" + struct.pack("<IH", 8, 3) + links + struct.pack("<I", 8)


def tiff_with(tag, layout, value, **options):
    """A TIFF one of whose entries is rewritten: its value, where there is one."""
    data = encode(RGB, "tiff", **options)
    at = struct.unpack("<I", data[4:8])[0] + 2
    while struct.unpack("<H", data[at : at + 2])[0] != tag:
        at += 12
    return lying(data, at + 8, layout, value)


def tiff_of(entries, num_bytes=4096, following=0):
    body = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + body + struct.pack("<I", following) + bytes(num_bytes)


def tiff_looping():
    data = encode(RGB, "tiff")
    at = struct.unpack("<I", data[4:8])[0]
    (num_entries,) = struct.unpack("<H", data[at : at + 2])
    return lying(data, at + 2 + 12 * num_entries, "<I", at)


TRUNCATED = {
    **{f"{kind} cut within its header": (BROKEN, lambda kind=kind: encode(NOISE, kind)[:18]) for kind in FORMATS},
    **{f"{kind} cut in half": (BROKEN, lambda kind=kind: cut(kind, 0.5)) for kind in FORMATS},
    **{f"{kind} cut near its end": (BROKEN, lambda kind=kind: cut(kind, 0.95)) for kind in FORMATS},
}
SHORT_PNG = {
    f"png of {name} with a row too few": (BROKEN, lambda shape=shape: short_png(*shape))
    for name, shape in {
        "grey": (8, 0, 24, 0),
        "bits": (1, 0, 3, 0),
        "palette": (8, 3, 24, 0),
        "grey and alpha": (8, 4, 48, 0),
        "alpha": (8, 6, 96, 0),
        "16 bits": (16, 2, 144, 0),
        "interlaced grey": (8, 0, 24, 1),
    }.items()
}
PNG = SHORT_PNG | {
    "png without pixels": (BROKEN, lambda: png(24, 16, depth=8, colour=2)),
    "png with few pixels": (BROKEN, lambda: rgb_png(rows=chunk(b"IDAT", zlib.compress(bytes(100))))),
    "png larger than stated": (taken(24, 4), lambda: rgb_png(size=(24, 4))),
    "png smaller than stated": (BROKEN, lambda: rgb_png(size=(24, 400))),
    "png of no width": (BROKEN, lambda: rgb_png(size=(0, 16))),
    "png of negative width": (LARGE, lambda: rgb_png(size=(2**32 - 1, 16))),
    "png of depth 3": (BROKEN, lambda: png(24, 16, ROWS, depth=3, colour=2)),
    "png of colour 5": (BROKEN, lambda: png(24, 16, ROWS, depth=8, colour=5)),
    "png palette missing": (BROKEN, lambda: without_chunk(encode(RGB.convert("P"), "png"), b"PLTE")[0]),
    "png header damaged": (BROKEN, lambda: with_crc_broken(rgb_png(), b"IHDR")),
    "png checksum of its pixels damaged": (taken(64, 48), lambda: with_crc_broken(encode(NOISE, "png"), b"IDAT")),
    "png without its header": (BROKEN, lambda: without_chunk(rgb_png(), b"IHDR")[0]),
    "png chunk beyond the end": (taken(), lambda: lying(rgb_png(), 33, ">I", 0x7FFFFFFF)),
    "png chunk of negative length": (taken(), lambda: lying(rgb_png(), 33, ">I", 0xFFFFFFFF)),
    "png text bomb": (BROKEN, lambda: rgb_png(chunk(b"zTXt", b"a\0\0" + ZEROS))),
    "png international text bomb": (BROKEN, lambda: rgb_png(chunk(b"iTXt", b"a\0\1\0\0\0" + ZEROS))),
    "png many text bombs": (BROKEN, lambda: rgb_png(*[chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(2**20)))] * 200)),
    "png profile bomb": (BROKEN, lambda: rgb_png(chunk(b"iCCP", b"a\0\0" + ZEROS))),
    "png pixel bomb": (taken(), lambda: rgb_png(rows=chunk(b"IDAT", ZEROS))),
    "png of 60,000 chunks": (BROKEN, lambda: rgb_png(*[chunk(b"tEXt", b"a\0b")] * 60_000)),
    "png of 20000 squared": (LARGE, lambda: uniform_png(20_000, 20_000)),
    "png far too wide": (LARGE, lambda: uniform_png(30_000, 2)),
    "png of 4 billion frames": (taken(), lambda: rgb_png(chunk(b"acTL", b"\xff" * 8))),
}
JPEG = {
    "jpeg of 65500 squared": (LARGE, lambda: with_frame_size(encode(RGB, "jpeg"), 65_500, 65_500)),
    "jpeg smaller than stated": (BROKEN, lambda: with_frame_size(encode(RGB, "jpeg"), 1024, 1024)),
    **{
        f"jpeg {mode} cut off and ended": (BROKEN, lambda mode=mode: cut_and_ended(NOISE.convert(mode)))
        for mode in ("RGB", "L", "CMYK")
    },
    "progressive jpeg cut off and ended": (BROKEN, lambda: cut_and_ended(NOISE, progressive=True)),
    "jpeg of no height": (BROKEN, lambda: with_frame_size(encode(RGB, "jpeg"), 24, 0)),
    "jpeg of 3000 scans": (LARGE, many_scans),
    "jpeg exif loop": (taken(), lambda: in_jpeg(segment(0xE1, exif_loop()))),
    "jpeg exif of 65,535 entries": (taken(), lambda: in_jpeg(segment(0xE1, b"Exif\0\0II*\0\x08\0\0\0\xff\xff"))),
    "jpeg exif beyond the end": (taken(), lambda: in_jpeg(segment(0xE1, b"Exif\0\0II*\0\xff\xff\xff\xff"))),
    "jpeg profile in 255 parts": (
        taken(),
        lambda: in_jpeg(*(segment(0xE2, b"ICC_PROFILE\0" + bytes([n, 255]) + bytes(60_000)) for n in range(1, 256))),
    ),
    "jpeg of 10,000 segments": (BROKEN, lambda: in_jpeg(*[segment(0xEE, b"")] * 10_000)),
    "jpeg with junk": (BROKEN, lambda: inserted(encode(RGB, "jpeg"), 20, bytes(2**20))),
    "jpeg with a short segment": (BROKEN, lambda: in_jpeg(b"\xff\xe3\0\1")),
    "jpeg without a frame": (BROKEN, lambda: b"\xff\xd8\xff\xda\0\2\xff\xd9"),
    "jpeg twice begun": (BROKEN, lambda: b"\xff\xd8" * 2000),
    "jpeg of 12 bits": (
        BROKEN,
        lambda: (d := encode(RGB, "jpeg"))[: (a := d.index(b"\xff\xc0") + 4)] + b"\x0c" + d[a + 1 :],
    ),
}
WEBP_GIF = {
    "webp canvas": (
        LARGE,
        lambda: lying(encode(RGB, "webp", exif=b"MM\0*" + bytes(8)), 24, "<IHB", 2**24 - 1, 65535, 255),
    ),
    "webp canvas other than its picture": (
        BROKEN,
        lambda: lying(encode(RGB, "webp", exif=b"MM\0*" + bytes(8)), 24, "<H", 999),
    ),
    "webp longer than it is": (BROKEN, lambda: lying(encode(RGB, "webp"), 4, "<I", 2**31)),
    "webp of no chunk": (BROKEN, lambda: b"RIFF\x20\0\0\0WEBPABCD" + bytes(40)),
    "webp of no key frame": (BROKEN, lambda: lying(encode(RGB, "webp"), 23, "<H", 0)),
    "webp of 2000 frames": (taken(16, 12), lambda: animation("webp", [(n % 256, n // 9, 3) for n in range(2000)])),
    "gif of 65535 squared": (LARGE, lambda: lying(encode(RGB, "gif"), 6, "<HH", 65_535, 65_535)),
    "gif frame beyond its screen": (LARGE, lambda: gif_framed(65_000, 65_000)),
    "gif of no size": (BROKEN, lambda: gif_framed(0, 0, screen=(0, 0))),
    "gif of 3000 frames": (taken(16, 12), lambda: animation("gif", [(n % 256, n // 12, 3) for n in range(3000)])),
    "gif of 2000 extensions": (BROKEN, lambda: inserted(encode(RGB, "gif"), 781, b"\x21\xfe\1x\0" * 2000)),
    "gif of no picture": (BROKEN, lambda: b"GIF89a\1\0\1\0\0\0\0;" + bytes(20)),
    "gif without codes": (BROKEN, lambda: b"GIF89a\x10\0\x10\0\0\0\0,\0\0\0\0\x10\0\x10\0\0\x08\0;" + bytes(9)),
}
BMP_TIFF = {
    "bmp of 60000 squared": (LARGE, lambda: lying(encode(RGB, "bmp"), 18, "<ii", 60_000, 60_000)),
    "bmp of negative width": (BROKEN, lambda: lying(encode(RGB, "bmp"), 18, "<i", -24)),
    "bmp of least height": (LARGE, lambda: lying(encode(RGB, "bmp"), 22, "<i", -(2**31))),
    "bmp of 7 bits": (BROKEN, lambda: lying(encode(RGB, "bmp"), 28, "<H", 7)),
    "bmp of runs": (FOREIGN, lambda: lying(encode(RGB.convert("P"), "bmp"), 30, "<I", 1)),
    "bmp of an unknown header": (BROKEN, lambda: lying(encode(RGB, "bmp"), 14, "<I", 2**31)),
    "bmp pixels beyond the end": (BROKEN, lambda: lying(encode(RGB, "bmp"), 10, "<I", 2**31)),
    "bmp of 2 billion colours": (BROKEN, lambda: lying(encode(RGB.convert("P"), "bmp"), 46, "<I", 2**31 - 1)),
    "tiff of 60000 squared": (LARGE, lambda: tiff_of([(256, 4, 1, 60_000), (257, 4, 1, 60_000)])),
    "tiff without a size": (BROKEN, lambda: tiff_of([(258, 3, 1, 8)])),
    "tiff of 65,535 entries": (BROKEN, lambda: b"II*\0\x08\0\0\0\xff\xff" + bytes(60)),
    "tiff directories in a loop": (taken(), tiff_looping),
    "tiff directory beyond the end": (BROKEN, lambda: lying(encode(RGB, "tiff"), 4, "<I", 2**32 - 1)),
    "tiff directory in its own header": (BROKEN, lambda: lying(encode(RGB, "tiff"), 4, "<I", 0)),
    "tiff strip beyond the end": (BROKEN, lambda: tiff_with(273, "<I", 2**31)),
    "tiff strip of 4 GiB": (BROKEN, lambda: tiff_with(279, "<I", 2**32 - 1, compression="tiff_lzw")),
    "tiff of 200 samples": (BROKEN, lambda: tiff_with(277, "<H", 200)),
    "tiff of an unknown compression": (BROKEN, lambda: tiff_with(259, "<H", 4711)),
    "tiff of 4 billion values": (
        taken(),
        lambda: tiff_of([(256, 4, 1, 24), (257, 4, 1, 16), (258, 3, 2**32 - 1, 8), (273, 4, 1, 8)]),
    ),
    "tiff of vast tiles": (
        BROKEN,
        lambda: tiff_of([(256, 4, 1, 24), (257, 4, 1, 16), (322, 4, 1, 60_000), (323, 4, 1, 60_000)]),
    ),
    "tiff inflating": (taken(), lambda: tiff_inflating()),
}
AVIF = {
    "avif of 65000 squared": (BROKEN, lambda: avif_stating(65_000, 65_000)),
    "avif of another size": (taken(900, 900), lambda: avif_stating(900, 900)),
    "avif box of 4 GiB": (
        BROKEN,
        lambda: lying(data := encode(NOISE, "avif"), data.index(b"meta") - 4, ">I", 2**32 - 1),
    ),
    "avif data of 2 GiB": (
        taken(64, 48),
        lambda: lying(data := encode(NOISE, "avif"), data.index(b"mdat") - 4, ">I", 2**31),
    ),
    "avif of its brand alone": (BROKEN, lambda: encode(NOISE, "avif")[:32]),
}


def gif_framed(width, height, screen=(24, 16)):
    data = lying(encode(RGB, "gif"), 6, "<HH", *screen)
    return lying(data, data.index(b"\x2c\0\0\0\0\x18\0\x10\0") + 5, "<HH", width, height)


def tiff_inflating():
    """One strip of a small picture that unfolds to 200 MiB."""
    entries = [(256, 4, 1, 24), (257, 4, 1, 16), (258, 3, 1, 8), (259, 3, 1, 8), (262, 3, 1, 1)]
    entries += [(273, 4, 1, 200), (278, 4, 1, 16), (279, 4, 1, len(ZEROS))]
    data = tiff_of(entries, 0)
    return data + bytes(200 - len(data)) + ZEROS


def avif_stating(width, height):
    data = encode(NOISE, "avif")
    return lying(data, data.index(b"ispe") + 8, ">II", width, height)


HOSTILE = TRUNCATED | PNG | JPEG | WEBP_GIF | BMP_TIFF | AVIF
