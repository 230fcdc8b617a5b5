"""A video file sampled as a whole, as facts for people and programs."""

import time
from pathlib import Path

import msgspec
from PIL import Image

from chiasm.media.video.frames import sample_video
from chiasm.media.video.sampling import SamplingRule
from chiasm.settings import MediaSettings


class SampledVideo(msgspec.Struct, frozen=True, kw_only=True):
    """What was taken of a video. `width` and `height` are upright; `times_s` count from the first frame."""

    file: str
    container: str
    codec: str
    width: int
    height: int
    stored_width: int
    stored_height: int
    num_frames: int
    duration_s: float
    average_fps: float
    indices: list[int]
    times_s: list[float]
    cpu_s: float


def sampled(file: Path, rule: SamplingRule, settings: MediaSettings, folder: Path | None = None) -> SampledVideo:
    """Sample a file and, with a folder, write its frames there. Raises `MediaError` and `MissingExtraError`."""
    started = time.thread_time()
    header, frames = sample_video(file.read_bytes(), rule, settings)
    taken, size = [], (header.width, header.height)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    for frame in frames:
        taken.append((frame.index, frame.time_s))
        size = frame.pixels.shape[1], frame.pixels.shape[0]
        if folder is not None:
            Image.fromarray(frame.pixels).save(folder / f"{file.stem}-{frame.index:06}.png")
    return SampledVideo(
        file=str(file),
        container=header.container,
        codec=header.codec,
        width=size[0],
        height=size[1],
        stored_width=header.width,
        stored_height=header.height,
        num_frames=header.num_frames,
        duration_s=header.duration_s,
        average_fps=header.average_fps,
        indices=[index for index, _ in taken],
        times_s=[time_s for _, time_s in taken],
        cpu_s=time.thread_time() - started,
    )
