"""Generated pictures: every format and mode, and files that lie about themselves."""

import base64
import io
import struct
import zlib

import numpy as np
from PIL import Image

FORMATS = ("jpeg", "png", "webp", "gif", "bmp", "tiff", "avif")


def encode(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind.upper(), **options)
    return buffer.getvalue()


def gradient(width=24, height=16):
    """Every pixel differs, so that any flip or rotation shows."""
    rows, columns = np.mgrid[0:height, 0:width]
    red, green = columns * 255 // max(width - 1, 1), rows * 255 // max(height - 1, 1)
    return Image.fromarray(np.stack([red, green, (red + 2 * green) % 256], axis=-1).astype(np.uint8))


def noise(width=64, height=48, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def exif_block(orientation, order="little"):
    """A minimal EXIF block, written out by hand."""
    mark = "<" if order == "little" else ">"
    head = b"II*\0" if order == "little" else b"MM\0*"
    return (
        b"Exif\0\0" + head + struct.pack(mark + "I", 8) + struct.pack(mark + "HHHIHHI", 1, 274, 3, 1, orientation, 0, 0)
    )


def chunk(kind, content=b""):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width, height, *chunks, depth=1, colour=0):
    """A PNG whose header says what it is told to, followed by whatever chunks."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks) + chunk(b"IEND")


def uniform_png(width, height):
    """A genuine 1-bit PNG of zeros, compressed in pieces so that no raster is ever held."""
    packer = zlib.compressobj(1)
    row = bytes(1 + (width + 7) // 8)
    data = b"".join(packer.compress(row * 256) for _ in range(height // 256)) + packer.compress(row * (height % 256))
    return png(width, height, chunk(b"IDAT", data + packer.flush()))


def with_frame_size(jpeg, width, height):
    """A JPEG whose frame header is rewritten."""
    at = next(i for i in range(len(jpeg) - 1) if jpeg[i] == 0xFF and jpeg[i + 1] in (0xC0, 0xC2))
    return jpeg[: at + 5] + struct.pack(">HH", height, width) + jpeg[at + 9 :]


def without_chunk(png_data, kind):
    """A PNG and the chunk of this kind cut out of it."""
    at = png_data.index(kind) - 4
    end = at + 12 + struct.unpack(">I", png_data[at : at + 4])[0]
    return png_data[:at] + png_data[end:], png_data[at:end]


def animation(kind, colours=((255, 0, 0), (0, 0, 255)), size=(16, 12), **options):
    frames = [Image.new("RGB", size, colour) for colour in colours]
    kind = "PNG" if kind == "apng" else kind
    return encode(frames[0], kind, save_all=True, append_images=frames[1:], **options)


def data_url(data, label="image/png"):
    return f"data:{label};base64,{base64.b64encode(data).decode()}"


def largest_difference(one, other):
    return int(np.abs(np.asarray(one, dtype=np.int16) - np.asarray(other, dtype=np.int16)).max())
