"""What `chiasm doctor` shows a model: a red circle on white, still or moving.

Each file is another one of the same pixels: servers that run already know it from no earlier time, and cannot answer
from their caches.
"""

import base64
import io
import secrets

import numpy as np
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

from chiasm.errors import MissingExtraError

_SIDE_PX = 224
_DIAMETER_PX = 104
_FPS = 4
_NUM_FRAMES = 8


def picture_url() -> str:
    """A PNG file in which it is in the middle, as a data URL."""
    file, note = io.BytesIO(), PngInfo()
    note.add_text("Comment", secrets.token_hex(8))
    _drawn((_SIDE_PX - _DIAMETER_PX) // 2).save(file, "PNG", pnginfo=note)
    return _data_url("image/png", file.getvalue())


def video_url() -> str:
    """An MP4 file of two seconds in which it moves to the right, as a data URL.

    Raises:
        MissingExtraError: PyAV is not installed.
    """
    try:
        import av
    except ImportError:
        raise MissingExtraError("Making a video needs PyAV", hint="pip install 'chiasm[video]'") from None
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        out.metadata["comment"] = secrets.token_hex(8)
        stream = out.add_stream("libx264", rate=_FPS)
        stream.width, stream.height, stream.pix_fmt = _SIDE_PX, _SIDE_PX, "yuv420p"
        for number in range(_NUM_FRAMES):
            left = (_SIDE_PX - _DIAMETER_PX) * (number + 1) // (_NUM_FRAMES + 1)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(np.asarray(_drawn(left)), format="rgb24")))
        out.mux(stream.encode())
    return _data_url("video/mp4", file.getvalue())


def _drawn(left: int) -> Image.Image:
    picture = Image.new("RGB", (_SIDE_PX, _SIDE_PX), "white")
    top = (_SIDE_PX - _DIAMETER_PX) // 2
    box = (left, top, left + _DIAMETER_PX, top + _DIAMETER_PX)
    ImageDraw.Draw(picture).ellipse(box, fill=(220, 30, 30))
    return picture


def _data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
