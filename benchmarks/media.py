"""Decoding and preparing pictures: CPU per picture and pictures per second, beside Pillow with transformers and OpenCV.

Pictures are drawn: noise over gradients, shapes and text for photos, windows of text for the screenshot. Ways take
turns picture by picture, and ratios are those of the same round, so that a busy machine harms all of them alike.
"""

import argparse
import io
import json
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
from PIL import Image, ImageDraw
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from benchmarks import machine
from benchmarks.ratios import median_ratio
from chiasm.media.kernels.registry import kernels
from chiasm.media.parity import preparation_parity
from chiasm.media.picture.decode import decode_pixels
from chiasm.media.picture.header import read_header
from chiasm.media.picture.room import Room
from chiasm.media.prepare.base import ImagePreparer, PreparedImage
from chiasm.media.prepare.medium import Announced, prepare_medium
from chiasm.media.prepare.qwen2_vl import Qwen2VLPreparer
from chiasm.media.prepare.reduced import ReducedPreparer
from chiasm.settings import MediaSettings

RESULTS = Path(__file__).parent / "results"
SETTINGS = MediaSettings()
TOKEN_PIXELS = 28 * 28
TURN_S = 0.03
REFERENCE = "pillow + transformers"
RAW = "libjpeg-turbo, no allocation"
Way = Callable[[bytes], object]


def photo(width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(width)
    y, x = np.mgrid[0:height, 0:width]
    light = np.stack([x * 255 / width, y * 255 / height, (x + y) * 255 / (width + height)], -1)
    image = Image.fromarray((light * 0.8 + rng.normal(20, 7, light.shape)).clip(0, 255).astype(np.uint8))
    draw, shapes = ImageDraw.Draw(image), random.Random(0)
    for _ in range(60):
        left, top = shapes.randrange(width), shapes.randrange(height)
        color = (shapes.randrange(256), shapes.randrange(256), shapes.randrange(256))
        box = (left, top, left + shapes.randrange(1, width // 4), top + shapes.randrange(1, height // 4))
        (draw.ellipse if shapes.random() < 0.5 else draw.rectangle)(box, fill=color)
    return image


def screenshot(width: int, height: int) -> Image.Image:
    image, letters = Image.new("RGB", (width, height), (245, 246, 248)), random.Random(0)
    draw = ImageDraw.Draw(image)
    for top in range(0, height, 180):
        draw.rectangle((20, top + 8, width - 20, top + 170), fill=(255, 255, 255), outline=(200, 200, 210))
        for line in range(8):
            text = "".join(letters.choices("abcdefghijklmnopqrstuvwxyz    ", k=width // 7))
            draw.text((40, top + 15 + line * 18), text, fill=(30, 30, letters.randint(30, 200)))
    image.paste(photo(width // 4, height // 4), (100, 100))
    return image


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def pictures(*, small: bool) -> Iterator[tuple[str, bytes]]:
    yield "jpeg 640x480", encoded(photo(640, 480), "JPEG", quality=90)
    yield "webp 640x480", encoded(photo(640, 480), "WEBP", quality=85)
    if small:
        yield "png 640x480 screenshot", encoded(screenshot(640, 480), "PNG")
        return
    yield "jpeg 1920x1080", encoded(photo(1920, 1080), "JPEG", quality=90)
    yield "jpeg 4000x3000", encoded(photo(4000, 3000), "JPEG", quality=88)
    yield "png 4000x3000 screenshot", encoded(screenshot(4000, 3000), "PNG")
    yield "webp 1920x1080", encoded(photo(1920, 1080), "WEBP", quality=85)


def opencv(data: bytes) -> Any:
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)


def decoders(kind: str, data: bytes) -> dict[str, Way]:
    room = Room()
    ways: dict[str, Way] = {
        "chiasm": lambda data: decode_pixels(data, SETTINGS, room=room),
        "chiasm, new memory": lambda data: decode_pixels(data, SETTINGS),
        "pillow": lambda data: np.asarray(Image.open(io.BytesIO(data)).convert("RGB")),
        "opencv": opencv,
    }
    if kind.startswith("jpeg"):
        height, width, *_ = simplejpeg.decode_jpeg_header(data)
        place = np.empty((height, width, 3), np.uint8)
        ways[RAW] = lambda data: simplejpeg.decode_jpeg(data, "RGB", buffer=place)
    return ways


def preparations(num_tokens: int, folder: Path) -> dict[str, Way]:
    limits = {"min_pixels": 4 * TOKEN_PIXELS, "max_pixels": num_tokens * TOKEN_PIXELS}
    ours, theirs = Qwen2VLPreparer(folder, limits, {}), Qwen2VLImageProcessorPil(**limits)

    def as_a_worker(data: bytes, preparer: ImagePreparer = ours) -> PreparedImage:
        header = read_header(data)
        return prepare_medium(data, Announced(header.width, header.height), preparer, SETTINGS).prepared

    def with_opencv(data: bytes) -> object:
        pixels = opencv(data)
        plan = ours.plan(pixels.shape[1], pixels.shape[0])
        return ours.prepare(cv2.resize(pixels, plan.resized, interpolation=cv2.INTER_AREA)).pixel_values()

    return {
        "chiasm exact": lambda data: as_a_worker(data).pixel_values(),
        "chiasm exact, bytes": as_a_worker,
        "chiasm fast": lambda data: as_a_worker(data, ReducedPreparer(ours)).pixel_values(),
        REFERENCE: lambda data: theirs(images=Image.open(io.BytesIO(data)).convert("RGB"), return_tensors="np"),
        "opencv, not exact": with_opencv,
    }


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def rounds_of(ways: dict[str, Way], data: bytes, num_rounds: int) -> dict[str, list[float]]:
    """CPU seconds per call of each way in each round; the order is drawn anew.

    A turn is as many calls as take `TURN_S`: single milliseconds are not measured well, and what ran before is in the
    processor's caches.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    counts = {name: max(1, round(TURN_S / max(_cpu_s_of(way, data, 2), 1e-6))) for name, way in ways.items()}
    order, rng = list(ways), random.Random(0)
    for _ in range(num_rounds):
        rng.shuffle(order)
        for name in order:
            times[name].append(_cpu_s_of(ways[name], data, counts[name]))
    return times


def _cpu_s_of(way: Way, data: bytes, count: int) -> float:
    started = cpu_s()
    for _ in range(count):
        way(data)
    return (cpu_s() - started) / count


def per_second(way: Way, data: bytes, num_threads: int, seconds: float) -> float:
    """Pictures per second of so many threads."""
    started, count = time.perf_counter(), 0
    with ThreadPoolExecutor(num_threads) as pool:
        while time.perf_counter() - started < seconds:
            count += len(list(pool.map(way, [data] * 2 * num_threads)))
    return count / (time.perf_counter() - started)


def measured(ways: dict[str, Way], data: bytes, baseline: str, options: argparse.Namespace) -> dict[str, Any]:
    times = rounds_of(ways, data, options.rounds)
    speeds = {threads: speeds_of(ways, data, threads, options) for threads in options.threads}
    found: dict[str, Any] = {}
    for name in ways:
        found[name] = {
            "cpu_ms": statistics.median(times[name]) * 1e3,
            "times_faster": median_ratio(times[baseline], times[name]),
            "pictures_per_s": {str(threads): statistics.median(speeds[threads][name]) for threads in speeds},
            "times_as_many_by_the_clock": {
                str(threads): median_ratio(speeds[threads][name], speeds[threads][baseline]) for threads in speeds
            },
        }
        if RAW in ways:
            found[name]["of_bare_libjpeg_turbo"] = median_ratio(times[RAW], times[name])
    return found


def speeds_of(
    ways: dict[str, Way], data: bytes, num_threads: int, options: argparse.Namespace
) -> dict[str, list[float]]:
    """Pictures per second of each way in each round."""
    rounds = [{name: per_second(way, data, num_threads, options.seconds) for name, way in ways.items()}
              for _ in range(options.clock_rounds)]  # fmt: skip
    return {name: [one[name] for one in rounds] for name in ways}


def against_memcpy(data: bytes, num_tokens: int, folder: Path) -> dict[str, float]:
    """CPU ms of preparing decoded pixels, of its parts and of copying what comes out."""
    ours = Qwen2VLPreparer(folder, {"max_pixels": num_tokens * TOKEN_PIXELS}, {})
    pixels = decode_pixels(data, SETTINGS)
    resized = kernels().resize(pixels, ours.plan(pixels.shape[1], pixels.shape[0]).resized, 3)
    floats = ours.prepare(resized).pixel_values()
    parts: dict[str, Way] = {
        "resize, patches, floats": lambda _: ours.prepare(pixels).pixel_values(),
        "patches, floats": lambda _: ours.prepare(resized).pixel_values(),
        "memcpy of the floats": lambda _: floats.copy(),
        "read the pixels once": lambda _: pixels.max(),
    }
    return {name: min(times) * 1e3 for name, times in rounds_of(parts, b"", 20).items()}


def fast_against_exact(kind: str, data: bytes, num_tokens: int, folder: Path) -> dict[str, Any]:
    """How far the fast preparation is from the exact one, in grey levels."""
    preparer = Qwen2VLPreparer(folder, {"max_pixels": num_tokens * TOKEN_PIXELS}, {})
    parity = preparation_parity(kind, data, preparer, SETTINGS)
    return {"psnr_db": parity.psnr_db, "max_error": parity.max_error, "mean_error": parity.mean_error}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks media", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.5, help="for each figure of pictures per second and round")
    parser.add_argument("--clock-rounds", type=int, default=5, help="of pictures per second")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--small", action="store_true", help="three small pictures, to see that it works")
    parser.add_argument("--out", type=Path, help=f"JSON file; default: printed only; results go to {RESULTS.name}/")
    options = parser.parse_args(arguments)
    cv2.setNumThreads(1)
    results: dict[str, Any] = {"benchmark": "media", "machine": machine.describe(), "pictures": {}}
    with tempfile.TemporaryDirectory() as folder:
        for kind, data in pictures(small=options.small):
            found = {"num_bytes": len(data), "decode": measured(decoders(kind, data), data, "pillow", options)}
            for num_tokens in options.tokens:
                ways = preparations(num_tokens, Path(folder))
                found[f"prepare, {num_tokens} tokens"] = measured(ways, data, REFERENCE, options)
                found[f"cpu_ms of preparing, {num_tokens} tokens"] = against_memcpy(data, num_tokens, Path(folder))
                if kind.startswith("jpeg"):
                    difference = fast_against_exact(kind, data, num_tokens, Path(folder))
                    found[f"fast against exact, {num_tokens} tokens"] = difference
            results["pictures"][kind] = found
            _show(kind, found)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


def _show(kind: str, found: dict[str, Any]) -> None:
    print(kind)
    for stage, ways in found.items():
        if stage.startswith(("cpu_ms", "fast against")):
            figures = (f"{name} {'-' if value is None else f'{value:.2f}'}" for name, value in ways.items())
            print(f"  {stage}: {', '.join(figures)}")
        elif isinstance(ways, dict):
            for name, one in ways.items():
                ratio, raw = one["times_faster"], one.get("of_bare_libjpeg_turbo")
                clock = (f"x{of['median']:.2f} with {n}" for n, of in one["times_as_many_by_the_clock"].items())
                speeds = ", ".join(f"{speed:.0f}/s with {n}" for n, speed in one["pictures_per_s"].items())
                print(
                    f"  {stage:22} {name:30} {one['cpu_ms']:8.2f} ms CPU"
                    f"  x{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]  {speeds}, {', '.join(clock)}"
                    + (f"  {raw['median']:.0%} of libjpeg-turbo [{raw['low']:.0%}, {raw['high']:.0%}]" if raw else "")
                )
