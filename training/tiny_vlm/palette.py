"""Colour names, and the RGB values people mean by them."""

from __future__ import annotations

from random import Random

RGB = tuple[int, int, int]

# A colour is any mixture of two of its examples: the first generation of training pictures, the
# Pillow/CSS name, and what plotting libraries and paint programs offer under that name.
EXAMPLES: dict[str, list[RGB]] = {
    "red": [(220, 40, 40), (255, 0, 0), (200, 0, 0), (230, 60, 50), (214, 39, 40)],
    "green": [(40, 160, 60), (0, 128, 0), (0, 255, 0), (0, 200, 0), (44, 160, 44), (60, 180, 75)],
    "blue": [(40, 80, 220), (0, 0, 255), (0, 0, 160), (31, 119, 180), (30, 144, 255), (65, 105, 225)],
    "yellow": [(240, 215, 40), (255, 255, 0), (255, 230, 50), (250, 220, 0)],
    "orange": [(245, 135, 25), (255, 165, 0), (255, 127, 14), (255, 140, 0)],
    "purple": [(135, 50, 165), (128, 0, 128), (148, 103, 189), (150, 0, 200), (100, 30, 150)],
    "pink": [(250, 130, 185), (255, 192, 203), (255, 105, 180), (227, 119, 194), (255, 150, 200)],
    "black": [(20, 20, 20), (0, 0, 0), (35, 35, 35)],
    "white": [(255, 255, 255), (245, 245, 245)],
    "gray": [(128, 128, 128), (190, 190, 190), (105, 105, 105), (160, 160, 160), (200, 200, 200)],
    "brown": [(139, 69, 19), (120, 72, 40), (150, 80, 45), (101, 67, 33)],
    "cyan": [(0, 255, 255), (175, 235, 240), (0, 200, 220), (23, 190, 207), (64, 224, 208)],
    "beige": [(240, 225, 190), (235, 220, 190), (225, 205, 165)],
}
PURE: dict[str, RGB] = {
    "red": (255, 0, 0),
    "green": (0, 128, 0),
    "blue": (0, 0, 255),
    "yellow": (255, 255, 0),
    "orange": (255, 165, 0),
    "purple": (128, 0, 128),
    "pink": (255, 192, 203),
    "black": (0, 0, 0),
    "white": (255, 255, 255),
    "gray": (128, 128, 128),
    "brown": (139, 69, 19),
    "cyan": (0, 255, 255),
}
COMMON = ["red", "green", "blue", "yellow", "orange", "purple", "pink", "black"]
COLOURS = [*COMMON, "white", "gray", "brown", "cyan"]
BACKGROUNDS = [*COLOURS, "beige"]
KOREAN = {
    "red": "빨간색",
    "green": "초록색",
    "blue": "파란색",
    "yellow": "노란색",
    "orange": "주황색",
    "purple": "보라색",
    "pink": "분홍색",
    "black": "검은색",
}


def jitter(rng: Random, rgb: RGB, amount: int) -> RGB:
    """`rgb` with every channel moved by at most `amount`."""
    r, g, b = (max(0, min(255, v + rng.randint(-amount, amount))) for v in rgb)
    return r, g, b


def mix(a: RGB, b: RGB, t: float) -> RGB:
    """The colour at `t` of the way from `a` to `b`."""
    r, g, b_ = (round(x + (y - x) * t) for x, y in zip(a, b, strict=True))
    return r, g, b_


def sample(rng: Random, name: str) -> RGB:
    """One of the many values called `name`."""
    a, b = rng.choice(EXAMPLES[name]), rng.choice(EXAMPLES[name])
    return jitter(rng, mix(a, b, rng.random()), 6)


def distance(a: RGB, b: RGB) -> float:
    """Euclidean distance in RGB, green counting more and blue less, as the eye has it."""
    weights = (1.0, 1.3, 0.7)
    return sum(w * (x - y) ** 2 for w, x, y in zip(weights, a, b, strict=True)) ** 0.5


def contrasting(rng: Random, against: list[RGB], threshold: float = 85.0, common: float = 0.75) -> tuple[str, RGB]:
    """A shape colour well apart from every colour in `against`; the common ones are likelier."""
    best = ("black", (0, 0, 0), -1.0)
    for _ in range(30):
        name = rng.choice(COMMON if rng.random() < common else COLOURS)
        rgb = PURE[name] if rng.random() < 0.3 else sample(rng, name)
        gap = min((distance(rgb, other) for other in against), default=999.0)
        if gap >= threshold:
            return name, rgb
        if gap > best[2]:
            best = (name, rgb, gap)
    return best[0], best[1]
