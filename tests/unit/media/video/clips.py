"""Small videos, drawn and encoded here. Every frame is told apart by its brightness and a bar that moves."""

import io
from fractions import Fraction

import av
import numpy as np


def drawn(index, size=(96, 64)):
    pixels = np.full((size[1], size[0], 3), (index * 7) % 200, np.uint8)
    at = (index * 3) % (size[0] - 8)
    pixels[8:40, at : at + 8] = (255, 60, 20)
    return pixels


def clip(
    num_frames=48,
    *,
    container="mp4",
    codec="libx264",
    size=(96, 64),
    fps=24,
    gop=12,
    b_frames=2,
    degrees=0,
    times_ms=None,
    sound=False,
    picture=True,
):
    """Encode. `times_ms` replaces the steady times of frames."""
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        audio = file.add_stream("aac", rate=16000) if sound else None
        if picture:
            _add_picture(file, num_frames, codec, size, fps, gop, b_frames, degrees, times_ms)
        if audio:
            _add_silence(file, audio)
    return out.getvalue()


def _add_picture(file, num_frames, codec, size, fps, gop, b_frames, degrees, times_ms):
    options = {"g": str(gop), "bf": str(b_frames)} if codec == "libx264" else {"g": str(gop), "cpu-used": "8"}
    stream = file.add_stream(codec, rate=fps, options=options)
    stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
    if degrees:
        stream.set_display_rotation(degrees)
    if times_ms:
        stream.codec_context.time_base = Fraction(1, 1000)
    for index in range(num_frames):
        frame = av.VideoFrame.from_ndarray(drawn(index, size), format="rgb24")
        if times_ms:
            frame.pts, frame.time_base = times_ms[index], Fraction(1, 1000)
        file.mux(stream.encode(frame))
    file.mux(stream.encode())


def _add_silence(file, stream):
    frame = av.AudioFrame.from_ndarray(np.zeros((1, 16000), np.float32), format="fltp", layout="mono")
    frame.sample_rate = 16000
    file.mux(stream.encode(frame))
    file.mux(stream.encode())


def all_frames(data):
    """Every frame, decoded one after the other by the library alone."""
    with av.open(io.BytesIO(data)) as file:
        return [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
