"""The cells of the grid: their requests, and the order in which they are measured."""

import base64
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from itertools import product
from typing import Any

from PIL import Image, ImageDraw

SIDE_OF_TOKENS = {64: 256, 256: 512}  # one visual token is 32 x 32 pixels
COLOURS = ("red", "green", "blue", "yellow", "black", "purple", "orange")


@dataclass(frozen=True)
class Cell:
    """One kind of request at one load (share of agg's capacity)."""

    images: int
    tokens: int
    output: int
    load: float

    def __str__(self) -> str:
        return f"{self.images} images x {self.tokens} tokens, output {self.output}, load {self.load:g}"

    @property
    def kind(self) -> str:
        """What it has in common with cells of other loads."""
        return f"{self.images} {self.tokens} {self.output}"


def all_cells(
    images: Sequence[int], tokens: Sequence[int], outputs: Sequence[int], loads: Sequence[float]
) -> list[Cell]:
    """Every combination; without images their size means nothing."""
    every = (Cell(*levels) for levels in product(images, tokens, outputs, loads))
    return [cell for cell in every if cell.images or cell.tokens == tokens[0]]


def in_balance(cells: Sequence[Cell], seed: int) -> list[Cell]:
    """All cells, in an order of which every start has each level of each factor about equally often."""
    rng = random.Random(seed)
    left = rng.sample(list(cells), len(cells))
    seen: Counter[tuple[str, Any]] = Counter()
    order = []
    while left:
        chosen = min(left, key=lambda cell: sum(seen[level] for level in asdict(cell).items()))
        left.remove(chosen)
        seen.update(asdict(chosen).items())
        order.append(chosen)
    return order


def picture(rng: random.Random, side: int) -> str:
    """A data URL nobody has seen: some shapes at random."""
    image = Image.new("RGB", (side, side), tuple(rng.choices(range(160, 256), k=3)))
    pen = ImageDraw.Draw(image)
    for _ in range(3):
        x, y, size = rng.randrange(side), rng.randrange(side), rng.randrange(side // 8, side // 2)
        pen.ellipse((x, y, x + size, y + size), fill=rng.choice(COLOURS))
    file = BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def pictures(seed: str, count: int, side: int) -> list[str]:
    """Some, always the same for a seed."""
    rng = random.Random(f"pictures {seed}")
    return [picture(rng, side) for _ in range(count)]


def body(shown: Sequence[str], text: str, output: int, *, is_streamed: bool = True, **more: Any) -> bytes:
    """One request; its answer has exactly `output` tokens."""
    content: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in shown]
    content.append({"type": "text", "text": text})
    request = {"messages": [{"role": "user", "content": content}], "stream": is_streamed, "temperature": 0}
    return json.dumps(request | more | {"max_tokens": output, "min_tokens": output, "ignore_eos": True}).encode()


def body_of(cell: Cell, seed: str) -> bytes:
    """A request of a cell that nobody has seen."""
    number = random.Random(seed).randrange(10**9)
    return body(
        pictures(seed, cell.images, SIDE_OF_TOKENS[cell.tokens]), f"Request {number}: what is there?", cell.output
    )
