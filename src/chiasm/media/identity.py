"""The name of a medium everywhere: in caches, in routing, in handles."""

import hashlib

import msgspec
import numpy as np

from chiasm.media.picture.decode import decode_pixels
from chiasm.protocol.media import VideoSample
from chiasm.settings import MediaSettings


def content_identity(data: bytes) -> str:
    """Return the sha256 hex of the encoded bytes, whatever URL or label they came with."""
    return hashlib.sha256(data).hexdigest()


def pixel_identity(data: bytes, settings: MediaSettings) -> str:
    """Return the sha256 hex of a picture's upright RGB pixels and size: files that look alike to a model have one name.

    Blocks. Raises what `decode_pixels` raises.
    """
    pixels = np.ascontiguousarray(decode_pixels(data, settings))
    height, width = pixels.shape[:2]
    found = hashlib.sha256(b"pixels:%dx%d:" % (width, height))
    found.update(pixels.data)
    return found.hexdigest()


def video_identity(content: str, sample: VideoSample) -> str:
    """Return the sha256 hex of a video's content identity and of which frames are meant.

    Other frames are another medium to a model.
    """
    return hashlib.sha256(b"video:" + bytes.fromhex(content) + msgspec.json.encode(sample)).hexdigest()
