"""Sampling a video: 30 frames of 10 s at 1280x720 to the size of 256 visual tokens, beside reading it with OpenCV.

Serving stacks read every frame with OpenCV, keep the wanted ones and resize them with the model's processor. Ways take
turns and ratios are those of the same round, so that a busy machine harms all of them alike.

What stops it is shown beside: what libav alone takes to decode every frame with two threads, and the wall time of each
part of our own work in one thread. Of these only the walk over the packets cannot run beside the others; decoding runs
beside itself where keyframes allow, and beside the colours and sizes of earlier frames always.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
from msgspec.structs import replace
from PIL import Image

from benchmarks import machine
from benchmarks.media import cpu_s, photo
from benchmarks.ratios import median_ratio
from chiasm.media.kernels.registry import kernels
from chiasm.media.video.frames import decoder_frames, sample_video
from chiasm.media.video.header import read_video_header
from chiasm.media.video.sampling import SamplingRule, sampled_indices
from chiasm.settings import MediaSettings

SETTINGS = MediaSettings()
RULE = SamplingRule(fps=None, num_frames=30)
TARGET = (588, 336)
BICUBIC = 3
Way = Callable[[bytes, str], list[Any]]
BASELINE = "opencv, every frame read"


def moving(num_frames: int, size: tuple[int, int], gop: int, b_frames: int) -> bytes:
    """H.264 of a still scene under a moving window with grain."""
    scene = np.asarray(photo(size[0] + 4 * num_frames, size[1]))
    grain = np.random.default_rng(0).integers(0, 12, (size[1], size[0], 3), np.uint8)
    with tempfile.NamedTemporaryFile(suffix=".mp4") as out:
        with av.open(out.name, "w") as file:
            stream = file.add_stream("libx264", rate=24, options={"g": str(gop), "bf": str(b_frames)})
            stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
            stream.codec_context.time_base = Fraction(1, 24)
            for number in range(num_frames):
                window = scene[:, 4 * number : 4 * number + size[0]]
                shown = np.minimum(window, 243) + np.roll(grain, number, 1)
                file.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(shown), format="rgb24")))
            file.mux(stream.encode())
        return Path(out.name).read_bytes()


def ours(data: bytes, _: str, num_threads: int = 1) -> list[Any]:
    frames = sample_video(data, RULE, replace(SETTINGS, video_threads=num_threads))[1]
    return [kernels().resize(frame.pixels, TARGET, BICUBIC) for frame in frames]


def with_two_threads(data: bytes, path: str) -> list[Any]:
    return ours(data, path, 2)


def wanted(data: bytes) -> set[int]:
    header = read_video_header(data, SETTINGS)
    return set(sampled_indices(header.num_frames, header.average_fps, RULE))


def everything(data: bytes, path: str) -> list[Any]:
    indices, found = wanted(data), []
    with av.open(path) as file:
        for number, frame in enumerate(file.decode(video=0)):
            if number in indices:
                found.append(resized(frame.to_ndarray(format="rgb24")))
    return found


def with_opencv(data: bytes, path: str) -> list[Any]:
    indices, found, number = wanted(data), [], 0
    reader = cv2.VideoCapture(path)
    while reader.grab():
        if number in indices:
            found.append(resized(cv2.cvtColor(reader.retrieve()[1], cv2.COLOR_BGR2RGB)))
        number += 1
    return found


def libav_alone(_: bytes, path: str) -> list[Any]:
    """The raw decoder's limit: frame threads, every frame, no colours, no sizes."""
    with av.open(path) as file:
        stream = file.streams.video[0]
        stream.thread_type, stream.codec_context.thread_count = "FRAME", 2
        for _frame in file.decode(stream):
            pass
    return []


def parts_ms(data: bytes) -> dict[str, float]:
    """Wall time of each part of our work, one after the other in one thread."""
    started = time.perf_counter()
    header = read_video_header(data, SETTINGS)
    walked = time.perf_counter()
    pts = [header.pts[index] for index in sampled_indices(header.num_frames, header.average_fps, RULE)]
    frames = [frame for _, frame in decoder_frames(data, header, [pts])]
    decoded = time.perf_counter()
    pixels = [frame.to_ndarray(format="rgb24") for frame in frames]
    colored = time.perf_counter()
    for one in pixels:
        kernels().resize(one, TARGET, BICUBIC)
    ended = time.perf_counter()
    times = {"packets": walked - started, "decoding": decoded - walked, "colors": colored - decoded}
    return {name: took_s * 1e3 for name, took_s in (times | {"sizes": ended - colored}).items()}


def resized(pixels: Any) -> Any:
    return np.asarray(Image.fromarray(pixels).resize(TARGET, Image.Resampling.BICUBIC))


def num_decoded(data: bytes) -> dict[str, int]:
    header = read_video_header(data, SETTINGS)
    return {"frames": header.num_frames, "keyframes": len(header.keyframe_pts), "wanted": len(wanted(data))}


def in_turns(ways: dict[str, Way], data: bytes, path: str, num_rounds: int) -> tuple[dict[str, list[float]], ...]:
    """CPU seconds and wall seconds of each way, and milliseconds of each part of ours, of every round."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    walls: dict[str, list[float]] = {way: [] for way in ways}
    parts: dict[str, list[float]] = {}
    for _ in range(num_rounds):
        for part, took_ms in parts_ms(data).items():
            parts.setdefault(part, []).append(took_ms)
        for way, run in ways.items():
            started, started_wall = cpu_s(), time.perf_counter()
            run(data, path)
            times[way].append(cpu_s() - started)
            walls[way].append(time.perf_counter() - started_wall)
    return times, walls, parts


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks video", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--small", action="store_true", help="a second at 320x240, to see that it works")
    parser.add_argument("--out", type=Path, help="JSON file; default: printed only")
    options = parser.parse_args(arguments)
    cv2.setNumThreads(1)
    length, size = (48, (320, 240)) if options.small else (240, (1280, 720))
    ways: dict[str, Way] = {
        "chiasm": ours, "chiasm, 2 threads": with_two_threads,
        "libav alone, 2 threads": libav_alone, "pyav, every frame decoded": everything, BASELINE: with_opencv,
    }  # fmt: skip
    results: dict[str, Any] = {"benchmark": "video", "machine": machine.describe(), "videos": {}}
    for name, gop, b_frames in (("keyframe each 2 s", 48, 2), ("one keyframe, 3 b-frames", 1000, 3)):
        data = moving(length, size, gop, b_frames)
        with tempfile.NamedTemporaryFile(suffix=".mp4") as file:
            file.write(data)
            file.flush()
            expected = everything(data, file.name)
            exact = all(
                all(map(np.array_equal, ways[way](data, ""), expected)) for way in ("chiasm", "chiasm, 2 threads")
            )
            times, walls, parts = in_turns(ways, data, file.name, options.rounds)
        found: dict[str, Any] = num_decoded(data) | {"frames_equal_pyav": exact, "num_bytes": len(data)}
        for way in ways:
            found[way] = {
                "cpu_ms": statistics.median(times[way]) * 1e3,
                "times_faster": median_ratio(times[BASELINE], times[way]),
                "wall_ms": statistics.median(walls[way]) * 1e3,
                "times_faster_by_the_clock": median_ratio(walls[BASELINE], walls[way]),
            }
            one = found[way]
            print(
                f"{name:26} {way:28} {one['cpu_ms']:8.1f} ms CPU  x{one['times_faster']['median']:.2f}"
                f"  {one['wall_ms']:8.1f} ms  x{one['times_faster_by_the_clock']['median']:.2f}"
            )
        print(f"{name:26} frames equal: {exact}, {found['frames']} frames, {found['keyframes']} keyframes")
        found["parts_ms"] = {part: statistics.median(took) for part, took in parts.items()}
        print(f"{name:26} " + ", ".join(f"{part} {took:.1f} ms" for part, took in found["parts_ms"].items()))
        results["videos"][name] = found
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
