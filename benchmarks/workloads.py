"""Requests, the same for every peer: made from a seed, unique in every round so that no cache helps anybody."""

import io
import random
from typing import Any

from PIL import Image, ImageDraw

PROMPT_TOKENS = 128
NEW_TOKENS = 64
MIX_REQUESTS = 64
QUESTION = "What color is the circle?"


def prompts(seed: str, count: int, max_token: int) -> list[list[int]]:
    """`count` random prompts of `PROMPT_TOKENS`."""
    rng = random.Random(seed)
    return [[rng.randint(10, max_token) for _ in range(PROMPT_TOKENS)] for _ in range(count)]


def _length(rng: random.Random, median: float, sigma: float, low: int, high: int) -> int:
    return int(min(high, max(low, rng.lognormvariate(0.0, sigma) * median)))


def mix(seed: str, max_token: int, requests_per_s: float) -> list[dict[str, Any]]:
    """Log-normal lengths, Poisson arrivals."""
    rng = random.Random(seed)
    requests, at_s = [], 0.0
    for _ in range(MIX_REQUESTS):
        prompt_tokens = _length(rng, 96, 0.6, 16, 512)
        requests.append(
            {
                "token_ids": [rng.randint(10, max_token) for _ in range(prompt_tokens)],
                "num_tokens": _length(rng, 48, 0.8, 4, 256),
                "at_s": at_s,
            }
        )
        at_s += rng.expovariate(requests_per_s)
    return requests


def picture(seed: str, side: int = 448) -> bytes:
    """A PNG with a few shapes; no two seeds give the same bytes."""
    rng = random.Random(seed)

    def color() -> tuple[int, int, int]:
        return rng.randrange(256), rng.randrange(256), rng.randrange(256)

    image = Image.new("RGB", (side, side), color())
    draw = ImageDraw.Draw(image)
    for _ in range(8):
        x, y, size = rng.randrange(side), rng.randrange(side), rng.randrange(20, side // 2)
        shape = rng.choice((draw.ellipse, draw.rectangle))
        shape((x, y, x + size, y + size), fill=color())
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()
