"""What is asked: pictures that nobody has seen, and questions about them."""

import json
import random
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import pybase64
from PIL import Image, ImageDraw

SIDE_OF_TOKENS = {64: 256, 256: 512}  # one visual token is 32 x 32 pixels
COLOURS = ("red", "green", "blue", "yellow", "black", "purple", "orange")
TEXT = "Question {}: what is there to see in a picture that shows some shapes of several colours on a light ground?"


def picture(rng: random.Random, side: int) -> str:
    """A data URL nobody has seen: some shapes at random."""
    image = Image.new("RGB", (side, side), tuple(rng.choices(range(160, 256), k=3)))
    pen = ImageDraw.Draw(image)
    for _ in range(3):
        x, y, size = rng.randrange(side), rng.randrange(side), rng.randrange(side // 8, side // 2)
        pen.ellipse((x, y, x + size, y + size), fill=rng.choice(COLOURS))
    file = BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + pybase64.b64encode(file.getvalue()).decode()


def pictures(seed: str, count: int, tokens: int) -> list[str]:
    """Some, always the same for a seed."""
    rng = random.Random(f"pictures {seed}")
    return [picture(rng, SIDE_OF_TOKENS[tokens]) for _ in range(count)]


def body(shown: Sequence[str], text: str, output: int, *, video: str = "", **more: Any) -> bytes:
    """One request; its answer is streamed and has exactly `output` tokens."""
    content: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in shown]
    if video:
        content.append({"type": "video_url", "video_url": {"url": video}})
    content.append({"type": "text", "text": text})
    request = {"messages": [{"role": "user", "content": content}], "stream": True, "temperature": 0}
    request["stream_options"] = {"include_usage": True}
    return json.dumps(request | more | {"max_tokens": output, "min_tokens": output, "ignore_eos": True}).encode()
