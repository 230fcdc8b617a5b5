"""The name of a medium everywhere: in caches, in routing, in handles."""

import hashlib

import msgspec

from chiasm.protocol.media import VideoSample


def content_identity(data: bytes) -> str:
    """Return the sha256 hex of the encoded bytes, whatever URL or label they came with."""
    return hashlib.sha256(data).hexdigest()


def video_identity(data: bytes, sample: VideoSample) -> str:
    """Return the sha256 hex of a video's bytes and of which frames are meant: others are another medium to a model."""
    content = hashlib.sha256(data).digest()
    return hashlib.sha256(b"video:" + content + msgspec.json.encode(sample)).hexdigest()
