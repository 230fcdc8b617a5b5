"""What a first test script draws: one big plain shape with `ImageDraw`, independent of `scenes`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from PIL import Image, ImageDraw

COLOURS = ["red", "green", "blue", "yellow", "orange", "purple", "pink", "black"]
KINDS = ["square", "circle", "triangle", "diamond", "star"]
SIDES = [224, 256, 300, 336, 384, 448, 448, 448, 512, 640]


@dataclass(frozen=True)
class Sketch:
    """A picture of one shape."""

    colour: str
    kind: str
    image: Image.Image

    @property
    def name(self) -> str:
        """Colour and shape."""
        return f"{self.colour} {self.kind}"


def draw(
    colour: str, kind: str, side: int = 448, share: float = 0.5, at: tuple[float, float] = (0.5, 0.5)
) -> Image.Image:
    """A `colour` shape taking `share` of the side, around `at`, on white."""
    image = Image.new("RGB", (side, side), "white")
    pen = ImageDraw.Draw(image)
    x, y, r = at[0] * side, at[1] * side, share * side / 2
    if kind == "square":
        pen.rectangle((x - r, y - r, x + r, y + r), fill=colour)
    elif kind == "circle":
        pen.ellipse((x - r, y - r, x + r, y + r), fill=colour)
    elif kind == "triangle":
        pen.polygon([(x, y - r), (x + r, y + r), (x - r, y + r)], fill=colour)
    elif kind == "diamond":
        pen.polygon([(x, y - r), (x + r, y), (x, y + r), (x - r, y)], fill=colour)
    else:
        turns = [math.pi * k / 5 - math.pi / 2 for k in range(10)]
        arms = [r if k % 2 == 0 else r * 0.42 for k in range(10)]
        pen.polygon([(x + a * math.cos(t), y + a * math.sin(t)) for a, t in zip(arms, turns, strict=True)], fill=colour)
    return image


def sketch(rng: Random, side: int) -> Sketch:
    """A random one, big and more or less in the middle."""
    share = rng.uniform(0.3, 0.85)
    slack = (1 - share) / 2 * 0.5
    at = (0.5 + rng.uniform(-slack, slack), 0.5 + rng.uniform(-slack, slack))
    colour, kind = rng.choice(COLOURS), rng.choice(KINDS)
    return Sketch(colour, kind, draw(colour, kind, side, share, at if rng.random() < 0.6 else (0.5, 0.5)))


def several(rng: Random, n: int) -> list[Sketch]:
    """`n` sketches of one size that differ in colour and in shape."""
    side = rng.choice(SIDES)
    while True:
        found = [sketch(rng, side) for _ in range(n)]
        if len({s.colour for s in found}) == n == len({s.kind for s in found}):
            return found


Asked = tuple[list[Image.Image], str, str]


def _colour(rng: Random) -> Asked:
    [one] = several(rng, 1)
    question = rng.choice(
        ["What colour is this?", "What color is the shape?", "what color is it", f"What color is the {one.kind}?"]
    )
    return [one.image], question, one.colour


def _shape(rng: Random) -> Asked:
    [one] = several(rng, 1)
    return (
        [one.image],
        rng.choice(["What shape is this?", "What shape do you see?", "what shape is it", "Which shape is shown?"]),
        one.kind,
    )


def _images(rng: Random, what: str) -> Asked:
    three = several(rng, 3)
    i = rng.randrange(3)
    words = rng.choice([f"image {i + 1}", f"the {['first', 'second', 'third'][i]} image"])
    question = f"What color is the shape in {words}?" if what == "colour" else f"What shape is in {words}?"
    return [s.image for s in three], question, getattr(three[i], "colour" if what == "colour" else "kind")


def _which(rng: Random) -> Asked:
    three = several(rng, 3)
    i = rng.randrange(3)
    article = "an" if three[i].colour == "orange" else "a"
    question = rng.choice(
        [
            f"Which image has the {three[i].name}?",
            f"Which image shows {article} {three[i].name}?",
            f"Which image has a {three[i].kind}?",
        ]
    )
    return [s.image for s in three], question, f"image {i + 1}"


def _order(rng: Random) -> Asked:
    three = several(rng, 3)
    if rng.random() < 0.5:
        return [s.image for s in three], "List the shapes in order.", ", ".join(s.kind for s in three)
    return [s.image for s in three], "List the colors of the shapes in order.", ", ".join(s.colour for s in three)


TASKS: dict[str, Callable[[Random], Asked]] = {
    "plain_colour": _colour,
    "plain_shape": _shape,
    "plain_images_colour": lambda rng: _images(rng, "colour"),
    "plain_images_shape": lambda rng: _images(rng, "shape"),
    "plain_which": _which,
    "plain_order": _order,
}
