"""Pictures that are odd and right: each is taken, at its upright size."""

import struct
import zlib

import numpy as np
from PIL import Image

from tests.faults.media_battery.outcomes import FOREIGN, inserted, taken
from tests.unit.media.pictures import animation, chunk, encode, exif_block, gradient, noise, png

RGB = gradient()
RGBA = gradient().convert("RGBA")
RGBA.putalpha(gradient().convert("L"))
PALETTE = gradient().convert("P")
GREY16 = Image.fromarray(np.arange(384, dtype=np.uint16).reshape(16, 24) * 150)


def png_of(depth, colour, bytes_per_row, *before):
    rows = zlib.compress((b"\0" + bytes(range(bytes_per_row))) * 16)
    return png(24, 16, *before, chunk(b"IDAT", rows), depth=depth, colour=colour)


def exif_jpeg(orientation, order="little"):
    return encode(RGB, "jpeg", exif=exif_block(orientation, order))


def upright(orientation):
    return taken(16, 24) if orientation in (5, 6, 7, 8) else taken()


PNG = {
    "png 1 bit": (taken(), lambda: encode(RGB.convert("1"), "png")),
    "png grey": (taken(), lambda: encode(RGB.convert("L"), "png")),
    "png grey, alpha": (taken(), lambda: encode(RGBA.convert("LA"), "png")),
    "png palette": (taken(), lambda: encode(PALETTE, "png")),
    "png palette, alpha": (taken(), lambda: encode(PALETTE, "png", transparency=bytes(range(256)))),
    "png alpha": (taken(), lambda: encode(RGBA, "png")),
    "png grey 16 bit": (taken(), lambda: encode(GREY16, "png")),
    "png grey 2 bit": (taken(), lambda: png_of(2, 0, 6)),
    "png rgb 16 bit": (taken(), lambda: png_of(16, 2, 144)),
    "png rgba 16 bit": (taken(), lambda: png_of(16, 6, 192)),
    "png transparent colour": (taken(), lambda: png_of(8, 2, 72, chunk(b"tRNS", bytes(6)))),
    "png unknown chunk": (taken(), lambda: png_of(8, 2, 72, chunk(b"zzZz", bytes(50)))),
    "png exif": (taken(16, 24), lambda: encode(RGB, "png", exif=exif_block(6)[6:])),
    "png animated": (taken(16, 12), lambda: animation("apng")),
    "png and bytes after it": (taken(), lambda: encode(RGB, "png") + b"PK\3\4" + bytes(5000)),
    "png one pixel": (taken(1, 1), lambda: encode(gradient(1, 1), "png")),
}
JPEG = {
    **{f"jpeg turned {n}": (upright(n), lambda n=n: exif_jpeg(n)) for n in range(1, 9)},
    "jpeg turned, big-endian": (taken(16, 24), lambda: exif_jpeg(8, "big")),
    "jpeg turned by nonsense": (taken(), lambda: exif_jpeg(999)),
    "jpeg grey": (taken(), lambda: encode(RGB.convert("L"), "jpeg")),
    "jpeg cmyk": (taken(), lambda: encode(RGB.convert("CMYK"), "jpeg")),
    "jpeg progressive": (taken(), lambda: encode(RGB, "jpeg", progressive=True)),
    "jpeg without subsampling": (taken(), lambda: encode(RGB, "jpeg", subsampling=0)),
    "jpeg with restarts": (taken(), lambda: encode(RGB, "jpeg", restart_marker_blocks=1)),
    "jpeg with a comment": (taken(), lambda: encode(RGB, "jpeg", comment=b"x" * 60_000)),
    "jpeg of several pictures": (taken(), lambda: encode(RGB, "mpo", save_all=True, append_images=[noise(24, 16)])),
    "jpeg and bytes after it": (taken(), lambda: encode(RGB, "jpeg") + bytes(5000)),
    "jpeg with fill bytes": (taken(), lambda: inserted(encode(RGB, "jpeg"), 2, b"\xff" * 200)),
}
WEBP_GIF_AVIF = {
    "webp lossy": (taken(), lambda: encode(RGB, "webp")),
    "webp lossless": (taken(), lambda: encode(RGB, "webp", lossless=True)),
    "webp alpha": (taken(), lambda: encode(RGBA, "webp")),
    "webp turned": (taken(16, 24), lambda: encode(RGB, "webp", exif=exif_block(5))),
    "webp animated": (taken(16, 12), lambda: animation("webp")),
    "gif": (taken(), lambda: encode(RGB, "gif")),
    "gif transparent": (taken(), lambda: encode(PALETTE, "gif", transparency=3)),
    "gif interlaced": (taken(), lambda: encode(PALETTE, "gif", interlace=1)),
    "gif animated": (taken(16, 12), lambda: animation("gif")),
    "gif with a comment": (taken(), lambda: encode(PALETTE, "gif", comment=b"x" * 5000)),
    "avif": (taken(), lambda: encode(RGB, "avif")),
    "avif alpha": (taken(), lambda: encode(RGBA, "avif")),
    "avif animated": (taken(16, 12), lambda: animation("avif")),
}
BMP_TIFF = {
    "bmp": (taken(), lambda: encode(RGB, "bmp")),
    "bmp palette": (taken(), lambda: encode(PALETTE, "bmp")),
    "bmp 1 bit": (taken(), lambda: encode(RGB.convert("1"), "bmp")),
    "bmp from the top": (taken(), lambda: (b := encode(RGB, "bmp"))[:22] + struct.pack("<i", -16) + b[26:]),
    "tiff": (taken(), lambda: encode(RGB, "tiff")),
    "tiff lzw": (taken(), lambda: encode(RGB, "tiff", compression="tiff_lzw")),
    "tiff deflated": (taken(), lambda: encode(RGB, "tiff", compression="tiff_adobe_deflate")),
    "tiff packed": (taken(), lambda: encode(RGB, "tiff", compression="packbits")),
    "tiff jpeg": (taken(), lambda: encode(RGB, "tiff", compression="jpeg")),
    "tiff fax": (taken(), lambda: encode(RGB.convert("1"), "tiff", compression="group4")),
    "tiff cmyk": (taken(), lambda: encode(RGB.convert("CMYK"), "tiff")),
    "tiff lab": (taken(), lambda: encode(RGB.convert("LAB"), "tiff")),
    "tiff alpha": (taken(), lambda: encode(RGBA, "tiff")),
    "tiff grey 16 bit": (taken(), lambda: encode(GREY16, "tiff")),
    "tiff of pages": (taken(), lambda: encode(RGB, "tiff", save_all=True, append_images=[noise(9, 9)])),
    "tiff turned": (taken(16, 24), lambda: encode(RGB, "tiff", tiffinfo={274: 6})),
    "tiff 32 bit": (FOREIGN, lambda: encode(RGB.convert("I"), "tiff")),
    "tiff float": (FOREIGN, lambda: encode(RGB.convert("F"), "tiff")),
}
VALID = PNG | JPEG | WEBP_GIF_AVIF | BMP_TIFF
