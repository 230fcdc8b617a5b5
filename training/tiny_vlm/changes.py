"""Two pictures that differ in one thing, or in nothing."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tiny_vlm import backgrounds, palette, phrasing
from tiny_vlm.questions import name
from tiny_vlm.scenes import SHAPES, Scene, Shape

NOTHING = "Nothing changed."
Change = tuple[Scene, Scene, str]


def _swap(scene: Scene, index: int, shape: Shape) -> Scene:
    shapes = list(scene.shapes)
    shapes[index] = shape
    return replace(scene, shapes=tuple(shapes))


def _recolour(rng: Random, scene: Scene) -> Change:
    i = rng.randrange(len(scene.shapes))
    old = scene.shapes[i]
    colour, rgb = old.colour, old.rgb
    while colour == old.colour:
        colour, rgb = palette.contrasting(rng, [*scene.background.colours, old.rgb])
    after = _swap(scene, i, replace(old, colour=colour, rgb=rgb))
    return scene, after, f"The {old.kind} changed from {old.colour} to {colour}."


def _reshape(rng: Random, scene: Scene) -> Change:
    i = rng.randrange(len(scene.shapes))
    old = scene.shapes[i]
    kind = rng.choice([k for k in SHAPES[:5] if k != old.kind])
    side = (old.w + old.h) / 2 if old.kind in ("rectangle", "oval") else max(old.w, old.h)
    after = _swap(scene, i, replace(old, kind=kind, w=side, h=side))
    return scene, after, f"The {name(old)} became {phrasing.article(kind)}."


def _remove(rng: Random, scene: Scene) -> Change:
    i = rng.randrange(len(scene.shapes))
    gone = scene.shapes[i]
    less = replace(scene, shapes=scene.shapes[:i] + scene.shapes[i + 1 :])
    if rng.random() < 0.5:
        return scene, less, f"The {name(gone)} was removed."
    return less, scene, phrasing.sentence(f"{phrasing.article(name(gone))} was added")


def _renumber(rng: Random, scene: Scene) -> Change:
    assert scene.number
    old = scene.number.text
    new = list(old)
    for i in rng.sample(range(len(old)), rng.randint(1, len(old))):
        new[i] = rng.choice([d for d in "0123456789" if d != old[i]])
    text = "".join(new)
    return scene, replace(scene, number=replace(scene.number, text=text)), f"The number changed from {old} to {text}."


def _repaint(rng: Random, scene: Scene) -> Change | None:
    old = scene.background
    if old.style != "plain":
        return None
    shown = [s.rgb for s in scene.shapes] + ([scene.number.rgb] if scene.number else [])
    for _ in range(12):
        new = backgrounds.plain(rng, rng.choice(palette.BACKGROUNDS))
        gaps = [palette.distance(new.colours[0], c) for c in [*shown, old.colours[0]]]
        if new.label != old.label and min(gaps) > 85:
            answer = f"The background changed from {old.label} to {new.label}."
            return scene, replace(scene, background=new), answer
    return None


def _move(rng: Random, scene: Scene) -> Change | None:
    if len(scene.shapes) != 1 or scene.number:
        return None
    shape = scene.shapes[0]
    direction = rng.choice(["left", "right", "up", "down"])
    across = direction in ("left", "right")
    length, size, at = (scene.width, shape.w, shape.x) if across else (scene.height, shape.h, shape.y)
    low, high = size / 2 + 2, length - size / 2 - 2
    far = at - low if direction in ("left", "up") else high - at
    if far < max(0.2 * length, 36):
        return None
    step = rng.uniform(max(0.2 * length, 36), far) * (-1 if direction in ("left", "up") else 1)
    moved = replace(shape, x=round(shape.x + step)) if across else replace(shape, y=round(shape.y + step))
    return scene, replace(scene, shapes=(moved,)), f"The {name(shape)} moved {direction}."


def _kinds(scene: Scene) -> list[str]:
    kinds = ["none", "background"]
    if scene.shapes:
        kinds += ["colour", "colour", "shape", "move"]
    if len(scene.shapes) + bool(scene.number) > 1 and scene.shapes:
        kinds += ["remove", "remove"]
    if scene.number:
        kinds += ["number", "number"]
    return kinds


def _retouch(rng: Random, scene: Scene) -> Scene:
    """The same picture drawn again: colours a little off, another JPEG quality."""
    shapes = tuple(replace(s, rgb=palette.jitter(rng, s.rgb, 3)) for s in scene.shapes)
    quality = scene.jpeg and max(35, min(95, scene.jpeg + rng.randint(-15, 15)))
    return replace(scene, shapes=shapes, jpeg=quality)


def change(rng: Random, scene: Scene) -> Change:
    """The scene before and after, and what changed in a sentence."""
    makers = {"colour": _recolour, "shape": _reshape, "remove": _remove, "number": _renumber}
    kind = rng.choice(_kinds(scene))
    result: Change | None = None
    if kind in makers:
        result = makers[kind](rng, scene)
    elif kind != "none":
        result = (_repaint if kind == "background" else _move)(rng, scene)
    if result is None:
        result = scene, scene, NOTHING
    if rng.random() < 0.5:
        return result
    return result[0], _retouch(rng, result[1]), result[2]
