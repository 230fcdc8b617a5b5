"""Questions about one picture, with the answers the model should give."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from random import Random

from tiny_vlm import palette, phrasing
from tiny_vlm.backgrounds import LABELS
from tiny_vlm.scenes import SHAPES, Scene, Shape

KOREAN_SHAPES = {"square": "사각형", "circle": "원", "triangle": "삼각형", "diamond": "마름모", "star": "별"}
_COLOUR_OF = [
    "What color is the {}?",
    "What is the color of the {}?",
    "Color of the {}?",
    "Tell me the color of the {}.",
    "Which color does the {} have?",
    "Which color is the {}?",
]
_SHAPE_OF = [
    "What shape is {0}?",
    "What is the {0} shape?",
    "Which shape is {0}?",
    "What is the {0} object?",
    "What is {0}?",
]
_COLOUR = [
    "What color is it?",
    "What color is this?",
    "What color is the shape?",
    "What is the color?",
    "What is the color of the shape?",
    "Which color is it?",
    "Which color do you see?",
    "What color do you see?",
    "What color is this shape?",
    "Name the color.",
    "What color is the object?",
]
_SHAPE = [
    "What shape is it?",
    "What shape is this?",
    "What shape is in the image?",
    "What shape do you see?",
    "What shape is shown?",
    "What is the shape?",
    "Which shape is this?",
    "Which shape do you see?",
    "Name the shape.",
    "What kind of shape is this?",
    "What shape is the object?",
]
_BOTH = [
    "What color and shape is it?",
    "Name the color and the shape.",
    "Which colored shape is this?",
    "What is this?",
    "Name the shape and its color.",
]
_NUMBER = [
    "What is the number?",
    "What number is shown?",
    "Read the number.",
    "Read the digits.",
    "What number is in the image?",
    "What number is this?",
    "Which number is shown?",
    "What number do you see?",
    "What does the number say?",
    "Which digits are shown?",
    "What are the digits?",
]
_FOUR_DIGITS = ["Which four digits are shown?", "What are the four digits?", "숫자가 무엇인가요?"]
_COUNT = [
    "How many shapes are there?",
    "How many shapes do you see?",
    "Count the shapes.",
    "How many shapes are in the image?",
    "What is the number of shapes?",
]
_COUNT_SOME = ["How many {} are there?", "How many {} do you see?", "How many {} are in the image?", "Count the {}."]
_BACKGROUND = [
    "What is the background color?",
    "What color is the background?",
    "Which color is the background?",
    "What is the color of the background?",
]
_CAPTION = [
    "Describe the image.",
    "Describe this image.",
    "What is in the image?",
    "What do you see?",
    "Caption this image.",
    "What is in this image?",
    "What does the image show?",
    "What is shown here?",
    "What can you see?",
]
NO_NUMBER = "There is no number."


@dataclass(frozen=True)
class Question:
    """One question; `leaks` says that its answer gives away the answers to others."""

    task: str
    text: str
    answer: str
    leaks: bool = False


def plural(shape: str) -> str:
    """The shape's name in the plural."""
    return shape + "s"


def name(shape: Shape) -> str:
    """A shape as an answer names it."""
    return f"{shape.colour} {shape.kind}"


def things(scene: Scene) -> str:
    """Everything in the picture, from left to right."""
    parts = [phrasing.article(name(s)) for s in scene.left_to_right()]
    if scene.number:
        parts.append("the number " + scene.number.text)
    return phrasing.listing(parts) if parts else "nothing"


def caption(scene: Scene) -> str:
    """The whole picture in a sentence."""
    return phrasing.sentence(f"{things(scene)} on a {background_name(scene)} background")


def background_name(scene: Scene) -> str:
    """What an answer calls the background."""
    assert scene.background.label in LABELS
    return scene.background.label


def where(scene: Scene, shape: Shape) -> str | None:
    """The quarter of the picture a shape is in, `center`, or None where it is neither."""
    fx, fy = shape.x / scene.width, shape.y / scene.height
    if abs(fx - 0.5) < 0.06 and abs(fy - 0.5) < 0.06:
        return "center"
    if abs(fx - 0.5) < 0.09 or abs(fy - 0.5) < 0.09:
        return None
    return ("top " if fy < 0.5 else "bottom ") + ("left" if fx < 0.5 else "right")


def _colour_of(rng: Random, shape: Shape) -> Question:
    korean = shape.kind in KOREAN_SHAPES and shape.colour in palette.KOREAN
    if korean and rng.random() < 0.1:
        text = rng.choice(["{}의 색은 무엇인가요?", "{}의 색은?"]).format(KOREAN_SHAPES[shape.kind])
        return Question("colour", text, palette.KOREAN[shape.colour])
    return Question("colour", phrasing.vary(rng, rng.choice(_COLOUR_OF).format(shape.kind)), shape.colour)


def _about_shapes(rng: Random, scene: Scene) -> list[Question]:
    kinds = Counter(s.kind for s in scene.shapes)
    colours = Counter(s.colour for s in scene.shapes)
    out = []
    for shape in scene.shapes:
        if kinds[shape.kind] == 1:
            out.append(_colour_of(rng, shape))
            place = where(scene, shape)
            if place:
                out.append(Question("where", phrasing.vary(rng, f"Where is the {shape.kind}?"), place))
        if colours[shape.colour] == 1:
            text = rng.choice(_SHAPE_OF).format(shape.colour)
            out.append(Question("shape", phrasing.vary(rng, text), shape.kind))
    return out


def _about_only_shape(rng: Random, shape: Shape) -> list[Question]:
    out = [
        Question("colour", phrasing.vary(rng, rng.choice(_COLOUR)), shape.colour),
        Question("shape", phrasing.vary(rng, rng.choice(_SHAPE)), shape.kind),
    ]
    if rng.random() < 0.5:
        answer = json.dumps({"color": shape.colour, "shape": shape.kind})
        text = rng.choice(
            ["Describe the shape as JSON.", "Describe the shape as JSON.", "Answer in JSON: color and shape."]
        )
        out.append(Question("json", phrasing.vary(rng, text), answer, leaks=True))
    if rng.random() < 0.5:
        text = phrasing.vary(rng, rng.choice(_BOTH))
        out.append(Question("both", text, phrasing.sentence(phrasing.article(name(shape))), leaks=True))
    return out


def _about_number(rng: Random, scene: Scene) -> list[Question]:
    if scene.number:
        four = len(scene.number.text) == 4 and rng.random() < 0.3
        text = rng.choice(_FOUR_DIGITS if four else _NUMBER)
        return [Question("digits", phrasing.vary(rng, text), scene.number.text)]
    if rng.random() < 0.25:
        return [Question("digits", phrasing.vary(rng, rng.choice(_NUMBER[:6])), NO_NUMBER)]
    return []


def _counting(rng: Random, scene: Scene) -> list[Question]:
    shapes = scene.shapes
    out = [Question("count", phrasing.vary(rng, rng.choice(_COUNT)), str(len(shapes)))]
    kind = rng.choice(shapes).kind if shapes and rng.random() < 0.7 else rng.choice(SHAPES)
    colour = rng.choice(shapes).colour if shapes and rng.random() < 0.7 else rng.choice(palette.COMMON)
    for what, n in (
        (plural(kind), sum(s.kind == kind for s in shapes)),
        (f"{colour} shapes", sum(s.colour == colour for s in shapes)),
    ):
        out.append(Question("count", phrasing.vary(rng, rng.choice(_COUNT_SOME).format(what)), str(n)))
    if shapes and rng.random() < 0.4:
        out.append(_is_there(rng, scene))
    return out


def _is_there(rng: Random, scene: Scene) -> Question:
    shape = rng.choice(scene.shapes)
    colour, kind = shape.colour, shape.kind
    if rng.random() < 0.5:
        colour, kind = rng.choice([(rng.choice(palette.COMMON), kind), (colour, rng.choice(SHAPES[:5]))])
    there = any(s.colour == colour and s.kind == kind for s in scene.shapes)
    what = phrasing.article(f"{colour} {kind}")
    return Question("is_there", phrasing.vary(rng, f"Is there {what}?"), "yes" if there else "no")


def about(rng: Random, scene: Scene) -> list[Question]:
    """Every question that can be asked about a picture, in no particular order."""
    out = _about_shapes(rng, scene)
    if len(scene.shapes) == 1:
        out += _about_only_shape(rng, scene.shapes[0])
    out += _about_number(rng, scene)
    out += _counting(rng, scene)
    out.append(Question("background", phrasing.vary(rng, rng.choice(_BACKGROUND)), background_name(scene)))
    if scene.shapes or scene.number:
        out.append(Question("caption", phrasing.vary(rng, rng.choice(_CAPTION)), caption(scene), leaks=True))
    return out
