"""Whether pictures should reach vLLM decoded on one host: CPU time of vLLM's decoding, and of having it done elsewhere.

    PYTHONPATH=src:. VLLM_PYTHON -m benchmarks.micro.decoded_pictures --json FILE

"encoded": what vLLM's front-end process does with a spooled picture by itself. "pixels": what it would do with decoded
ones. "decoding" and "writing": what the gateway would do for that, for every picture. "ours": the front-end decodes the
spooled picture as the gateway would. Milliseconds of this thread's CPU time, the median of many turns.
"""

import argparse
import io
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from vllm.multimodal.media import ImageMediaIO, MediaWithBytes

from benchmarks import machine
from chiasm.media.picture.decode import decode_pixels
from chiasm.media.sources import read_source
from chiasm.media.spool import Spool
from chiasm.settings import MediaSettings

SIZES = ((448, 448), (1920, 1080))
FORMATS = ("jpeg", "png")


def photograph(width: int, height: int) -> Image.Image:
    """Soft shapes under fine noise, which compresses about as photographs do."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (9, 16, 3), np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    noisy = np.asarray(coarse, np.int16) + rng.normal(0, 6, (height, width, 3)).astype(np.int16)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def encoded(picture: Image.Image, kind: str) -> bytes:
    """The file of a picture."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, **({"quality": 85} if kind == "jpeg" else {}))
    return buffer.getvalue()


def cpu_ms(work: Callable[[], object], turns: int) -> float:
    """CPU time of one turn, after one that does not count."""
    work()
    times = []
    for _ in range(turns):
        before_s = time.thread_time()
        work()
        times.append(time.thread_time() - before_s)
    return round(statistics.median(times) * 1e3, 3)


def measure(data: bytes, settings: MediaSettings, turns: int) -> dict[str, float]:
    """Both ways for one picture."""
    load = ImageMediaIO().load_bytes
    pixels = decode_pixels(data, settings)
    if not np.array_equal(pixels, np.asarray(load(data).media)):
        raise SystemExit("The two decoders see different pictures")
    shape = pixels.shape
    spool, numbers = Spool(settings), iter(range(10**6))
    try:
        of_file, of_pixels = spool.hold("file", data), spool.hold("pixels", pixels.tobytes())

        def unpacked() -> Any:
            found = read_source(of_pixels, settings)
            image = Image.frombuffer("RGB", (shape[1], shape[0]), found, "raw", "RGB", 0, 1)
            return MediaWithBytes(image, found)

        def ours() -> Any:
            found = read_source(of_file, settings)
            return MediaWithBytes(Image.fromarray(decode_pixels(found, settings)), found)

        def written() -> None:
            spool.release(spool.hold(str(next(numbers)), pixels.tobytes()))

        return {
            "encoded_ms": cpu_ms(lambda: load(read_source(of_file, settings)), turns),
            "pixels_ms": cpu_ms(unpacked, turns),
            "decoding_ms": cpu_ms(lambda: decode_pixels(data, settings), turns),
            "writing_ms": cpu_ms(written, turns),
            "ours_ms": cpu_ms(ours, turns),
        }
    finally:
        spool.close()


def judged(found: dict[str, float]) -> dict[str, float]:
    """With what one host does for a picture in all, pixels beside the file."""
    in_all = found["pixels_ms"] + found["decoding_ms"] + found["writing_ms"]
    return found | {
        "host_ms_by_pixels": round(in_all, 3),
        "pixels_ratio": round(in_all / found["encoded_ms"], 2),
        "ours_ratio": round(found["ours_ms"] / found["encoded_ms"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.micro.decoded_pictures", description=__doc__)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    logging.disable(logging.INFO)
    about, rows = machine.describe(), {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        settings = MediaSettings(spool_directory=folder)
        for width, height in SIZES:
            for kind in FORMATS:
                data = encoded(photograph(width, height), kind)
                row = judged(measure(data, settings, options.turns))
                rows[f"{width}x{height} {kind}"] = {"file_kb": len(data) // 1000} | row
                print(f"{width}x{height} {kind}: {rows[f'{width}x{height} {kind}']}", flush=True)
    options.json.write_text(json.dumps({"machine": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
