"""A video's chosen frames as one file: for engines that are to see these frames and no others, and decode nothing."""

from math import prod

import msgspec
import numpy as np
from numpy.typing import NDArray

from chiasm.errors import MediaDecodeError, UnsupportedMediaError
from chiasm.protocol.media import VideoSample

Frames = NDArray[np.uint8]
"""[frames, height, width, 3], contiguous: red, green, blue of upright frames."""

PACKED_FORMAT = "x-chiasm-frames"
"""As a format of media items, and in `video/x-chiasm-frames`."""

_MAGIC = b"chiasm-frames/1\n"
_MAX_HEAD_BYTES = 2**16


class PackedVideo(msgspec.Struct, frozen=True):
    """`sample` says which of how many frames these are, and how far apart: its `fps` is above 0."""

    sample: VideoSample
    frames: Frames


class _Head(msgspec.Struct, frozen=True):
    sample: VideoSample
    shape: tuple[int, int, int, int]


def pack_video(video: PackedVideo) -> bytes:
    """The file: a mark, the length of the head, the head as JSON, the pixels."""
    shape = video.frames.shape
    head = msgspec.json.encode(_Head(video.sample, (shape[0], shape[1], shape[2], shape[3])))
    return b"".join((_MAGIC, len(head).to_bytes(4, "little"), head, np.ascontiguousarray(video.frames).data))


def unpack_video(data: bytes) -> PackedVideo:
    """Read a file; the frames can be written to and share no memory with it.

    Raises:
        UnsupportedMediaError: It holds something else, such as an encoded video.
        MediaDecodeError: Cut off, or its head is not true.
    """
    if not data.startswith(_MAGIC):
        raise UnsupportedMediaError("The video is not given as frames", hint="Send it to the gateway, which decodes")
    start = len(_MAGIC) + 4
    head_bytes = int.from_bytes(data[len(_MAGIC) : start], "little")
    try:
        if head_bytes > _MAX_HEAD_BYTES:
            raise msgspec.ValidationError("its head is too long")
        head = msgspec.json.decode(data[start : start + head_bytes], type=_Head)
    except msgspec.DecodeError as error:
        raise MediaDecodeError(f"The frames of a video cannot be read: {str(error)[:200]}") from error
    pixels = data[start + head_bytes :]
    is_true = min(head.shape) > 0 and head.shape[3] == 3 and head.shape[0] == len(head.sample.indices)
    if not is_true or head.sample.fps <= 0 or len(pixels) != prod(head.shape):
        raise MediaDecodeError(f"The frames of a video are not as their head says: {head.shape}")
    return PackedVideo(head.sample, np.frombuffer(bytearray(pixels), np.uint8).reshape(head.shape))
