"""Scenes: what is in a picture, laid out at random.  `drawing` turns one into pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from random import Random

from tiny_vlm import backgrounds, fonts, palette
from tiny_vlm.backgrounds import Background
from tiny_vlm.palette import RGB

SHAPES = ["square", "circle", "triangle", "diamond", "star", "rectangle", "oval"]
MAX_SHAPES = 6
MAX_DIGITS = 6
PLAIN = 0.4
_BASIC = SHAPES[:5]


@dataclass(frozen=True)
class Shape:
    """A shape within a box of `w` by `h` pixels around (`x`, `y`)."""

    kind: str
    colour: str
    rgb: RGB
    x: float
    y: float
    w: float
    h: float
    stroke: int = 0  # outline width; 0 is filled
    border: RGB | None = None  # a thin edge of another colour around a filled shape
    angle: float = 0.0  # degrees
    variant: float = 0.5  # where a triangle's apex is, how slim a star's arms are
    flipped: bool = False

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom."""
        return self.x - self.w / 2, self.y - self.h / 2, self.x + self.w / 2, self.y + self.h / 2


@dataclass(frozen=True)
class Number:
    """Digits drawn one after the other, from (`x`, `y`), the top left of the first."""

    text: str
    x: float
    y: float
    size: int
    font: str
    rgb: RGB
    gap: int = 0
    bold: int = 0
    angle: float = 0.0

    def advances(self) -> list[float]:
        """The width of every digit."""
        font = fonts.load(self.font, self.size)
        return [font.getlength(c) for c in self.text]

    @property
    def extent(self) -> tuple[float, float]:
        """Width and height of the whole number, unrotated."""
        return sum(self.advances()) + self.gap * (len(self.text) - 1), self.size * 1.2

    def centres(self) -> list[tuple[float, float]]:
        """The centre of every digit, rotation included."""
        width, height = self.extent
        cx, cy = self.x + width / 2, self.y + height / 2
        a = math.radians(self.angle)
        found, left = [], self.x
        for advance in self.advances():
            dx = left + advance / 2 - cx
            found.append((cx + dx * math.cos(a), cy - dx * math.sin(a)))
            left += advance + self.gap
        return found


@dataclass(frozen=True)
class Scene:
    """A picture before it is drawn."""

    width: int
    height: int
    background: Background
    shapes: tuple[Shape, ...] = ()
    number: Number | None = None
    antialias: bool = False
    jpeg: int | None = None  # quality, if the picture went through a JPEG file
    target: tuple[int, int] | None = field(default=None)  # size after the image processor

    @property
    def processed(self) -> tuple[int, int]:
        """Width and height as the vision tower sees them."""
        return self.target or (self.width, self.height)

    def left_to_right(self) -> list[Shape]:
        """The shapes in reading order."""
        return sorted(self.shapes, key=lambda s: s.x)


@dataclass(frozen=True)
class Style:
    """How hard a scene is to see."""

    plain: bool = False  # pure colours, filled, nothing fancy: what a first script draws
    texture: float = 0.2
    outline: float = 0.2
    jpeg: float = 0.15
    rotate: float = 0.15


def style(rng: Random, plain: float = PLAIN) -> Style:
    """A style; `plain` is the share of scenes as plain as a first test."""
    return Style(plain=rng.random() < plain)


Box = tuple[float, float, float, float]


def _free(box: Box, taken: list[Box], margin: float) -> bool:
    return all(
        box[2] + margin < o[0] or o[2] + margin < box[0] or box[3] + margin < o[1] or o[3] + margin < box[1]
        for o in taken
    )


def _proportions(rng: Random, kind: str, plain: bool) -> tuple[float, float]:
    """Width and height relative to the larger of the two."""
    if kind in ("rectangle", "oval"):
        short = rng.uniform(0.33, 0.66)
        return (1.0, short) if rng.random() < 0.6 else (short, 1.0)
    if plain or kind in ("square", "circle", "star"):
        return 1.0, 1.0
    short = rng.uniform(0.7, 1.0)
    return (1.0, short) if rng.random() < 0.5 else (short, 1.0)


def _details(rng: Random, kind: str, size: float, look: Style) -> dict[str, object]:
    """The optional attributes of a shape."""
    if look.plain:
        return {}
    out: dict[str, object] = {}
    if rng.random() < look.outline and size >= 28:
        out["stroke"] = max(2, round(size * rng.uniform(0.025, 0.14)))
    elif rng.random() < 0.1:
        out["border"] = (0, 0, 0) if rng.random() < 0.8 else (255, 255, 255)
    if rng.random() < look.rotate:
        out["angle"] = rng.uniform(-12, 12)
    if kind == "triangle":
        out["variant"] = 0.5 if rng.random() < 0.75 else rng.uniform(0, 1)
        out["flipped"] = rng.random() < 0.12
    if kind == "star":
        out["variant"] = rng.uniform(0.36, 0.5)
    return out


def _shape_at(rng: Random, size: float, x: float, y: float, look: Style, against: list[RGB]) -> Shape:
    kind = rng.choice(_BASIC if rng.random() < (0.95 if look.plain else 0.8) else SHAPES)
    w, h = _proportions(rng, kind, look.plain)
    colour, rgb = palette.contrasting(rng, against, common=0.95 if look.plain else 0.75)
    if look.plain and rng.random() < 0.7:
        rgb = palette.PURE[colour]
    extra = _details(rng, kind, size, look)
    return Shape(kind, colour, rgb, round(x), round(y), size * w, size * h, **extra)  # type: ignore[arg-type]


def _single_size(rng: Random, side: int, scale: float) -> float:
    smallest = max(0.08 * side, 20 * scale)
    if rng.random() < 0.5:
        return side * rng.uniform(0.3, 0.8) if side * 0.3 > smallest else side * 0.7
    return smallest * (0.95 * side / smallest) ** rng.random()


class _Layout:
    """Places things on a canvas so that they do not touch."""

    def __init__(self, rng: Random, width: int, height: int, scale: float) -> None:
        self.rng, self.width, self.height, self.scale = rng, width, height, scale
        self.taken: list[Box] = []
        self.xs: list[float] = []

    def place(self, w: float, h: float, centred: bool = False) -> tuple[float, float] | None:
        """The centre of a free place for a box, or None."""
        room_x, room_y = self.width - w, self.height - h
        if room_x < 0 or room_y < 0:
            return None
        edge = 2 if min(room_x, room_y) >= 4 else 0
        x, y = self.width / 2, self.height / 2
        if not centred:
            x = w / 2 + edge + self.rng.random() * (room_x - 2 * edge)
            y = h / 2 + edge + self.rng.random() * (room_y - 2 * edge)
        box = (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
        margin = 4 * self.scale
        apart = all(abs(x - other) > 10 * self.scale for other in self.xs)
        if not apart or not _free(box, self.taken, margin):
            return None
        self.taken.append(box)
        return x, y


def _number(rng: Random, room: _Layout, alone: bool, look: Style, against: list[RGB]) -> Number | None:
    text = "".join(rng.choice("0123456789") for _ in range(rng.choice([1, 2, 3, 3, 4, 4, 4, 4, 5, 6])))
    font = fonts.DEFAULT if look.plain and rng.random() < 0.6 else fonts.choose(rng)
    side = min(room.width, room.height)
    for _ in range(12):
        largest = max(24.0, min(160.0, side * (0.85 if alone else 0.4)))
        size = round(20 * room.scale * max(1.0, largest / 20 / room.scale) ** rng.random())
        rgb = (0, 0, 0)
        dark = min(palette.distance(rgb, other) for other in against) > 110
        if not dark or rng.random() < 0.3:
            rgb = palette.contrasting(rng, against, 110)[1]
        bold = rng.choice([0, 0, 0, 0, max(1, size // 28)])
        number = Number(text, 0, 0, size, font, rgb, rng.choice([0, 0, 0, 2, 4]), bold)
        w, h = number.extent
        angle = rng.uniform(-6, 6) if not look.plain and rng.random() < look.rotate else 0.0
        slack = abs(math.sin(math.radians(angle))) * w
        spot = room.place(w + 4, h + slack + 2, centred=alone and rng.random() < 0.4)
        if spot:
            return replace(number, x=spot[0] - w / 2, y=spot[1] - h / 2, angle=angle)
    return None


def _most_shapes(width: int, height: int, scale: float) -> int:
    area = width * height / scale**2
    return 1 if area < 112**2 else 2 if area < 144**2 else 4 if area < 176**2 else MAX_SHAPES


def _scatter(rng: Random, room: _Layout, n: int, look: Style, against: list[RGB]) -> list[Shape]:
    side = min(room.width, room.height)
    smallest = max(0.08 * side, 22 * room.scale)
    largest = max(smallest + 4, side * (0.62 if n == 2 else 0.5 if n == 3 else 0.38))
    found: list[Shape] = []
    alike = rng.random() < 0.25  # many of one shape or of one colour make counting worth asking
    for _ in range(n):
        for attempt in range(30):
            size = rng.uniform(smallest, largest if attempt < 10 else (smallest * 2 + largest) / 3)
            shape = _shape_at(rng, size, 0, 0, look, against)
            if alike and found:
                keep = rng.choice(["kind", "colour"])
                if keep == "colour":
                    shape = replace(shape, colour=found[0].colour, rgb=found[0].rgb)
                else:
                    shape = replace(shape, kind=found[0].kind, w=found[0].w, h=found[0].h)
            spot = room.place(max(shape.w, 22 * room.scale), max(shape.h, 22 * room.scale))
            if spot:
                room.xs.append(spot[0])
                found.append(replace(shape, x=round(spot[0]), y=round(spot[1])))
                break
    return found


def _single(rng: Random, room: _Layout, look: Style, against: list[RGB]) -> list[Shape]:
    side = min(room.width, room.height)
    for attempt in range(20):
        size = _single_size(rng, side, room.scale) * (1.0 if attempt < 8 else 0.6)
        shape = _shape_at(rng, size, 0, 0, look, against)
        spot = room.place(shape.w, shape.h, centred=rng.random() < 0.35)
        if spot:
            return [replace(shape, x=round(spot[0]), y=round(spot[1]))]
    return []


def _how_many(rng: Random, most: int, has_number: bool) -> int:
    if has_number and rng.random() < 0.3:
        return 0
    if rng.random() < 0.4:
        return min(1, most)
    return min(most, rng.choice([1, 2, 2, 3, 3, 4, 5, 6]))


def compose(
    rng: Random,
    size: tuple[int, int],
    count: int | None = None,
    number: bool | None = None,
    distinct: bool = False,
    look: Style | None = None,
    scale: float = 1.0,
) -> Scene:
    """A random scene of `size` pixels; `scale` is by how much the processor will shrink it."""
    look = look or style(rng)
    width, height = size
    texture = not look.plain and rng.random() < look.texture
    back = backgrounds.textured(rng) if texture else backgrounds.plain(rng, pure=look.plain)
    against = list(back.colours)
    with_number = rng.random() < 0.45 if number is None else number
    n = _how_many(rng, _most_shapes(width, height, scale), with_number) if count is None else count
    room = _Layout(rng, width, height, scale)
    written = None
    if with_number and min(width, height) / scale >= 96:
        written = _number(rng, room, n == 0, look, against)
    if written is None and count is None and n == 0:
        n = 0 if rng.random() < 0.1 else 1
    if n == 1 and written is None:
        shapes = _single(rng, room, look, against)
    else:
        shapes = _scatter(rng, room, n, look, against) if n else []
    if distinct and _repeats(shapes):
        return compose(rng, size, count, number, distinct, look, scale)
    jpeg = rng.randint(35, 95) if not look.plain and rng.random() < look.jpeg else None
    smooth = rng.random() < (0.15 if look.plain else 0.4)
    return Scene(width, height, back, tuple(shapes), written, smooth, jpeg)


def _repeats(shapes: list[Shape]) -> bool:
    kinds, colours = {s.kind for s in shapes}, {s.colour for s in shapes}
    return min(len(kinds), len(colours)) < len(shapes)


def raw_size(rng: Random, processed: tuple[int, int], side: int = 32) -> tuple[tuple[int, int], float]:
    """A picture size that the processor turns into `processed`, and the factor it shrinks by."""
    w, h = processed
    if rng.random() < 0.5:
        return processed, 1.0
    if w * h > 480 * 480 and rng.random() < 0.6:
        factor = rng.uniform(1.05, 1.9)
        return (round(w * factor), round(h * factor)), factor
    slack = side // 2 - 2
    return (max(64, w + rng.randint(-slack, slack)), max(64, h + rng.randint(-slack, slack))), 1.0


def scene_for(rng: Random, processed: tuple[int, int], plain: float = PLAIN, **kwargs: object) -> Scene:
    """A scene which the image processor brings to `processed` pixels."""
    size, scale = raw_size(rng, processed)
    scene = compose(rng, size, scale=scale, look=style(rng, plain), **kwargs)  # type: ignore[arg-type]
    return replace(scene, target=processed)
