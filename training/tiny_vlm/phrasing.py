"""How people word things: spelling, case, punctuation and the many names of a picture."""

from __future__ import annotations

import re
from random import Random

_BRITISH = {"color": "colour", "Color": "Colour", "gray": "grey"}
_PICTURE = ["image", "image", "picture", "photo"]
ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth"]
_SHORT = ["1st", "2nd", "3rd", "4th", "5th", "6th"]


def british(text: str) -> str:
    """`text` in British spelling."""
    for ours, theirs in _BRITISH.items():
        text = text.replace(ours, theirs)
    return text


def vary(rng: Random, question: str) -> str:
    """The same question as another person might type it."""
    if rng.random() < 0.4:
        question = re.sub(r"\bimage\b", rng.choice(_PICTURE), question)
        question = re.sub(r"\bimages\b", rng.choice(["images", "pictures"]), question)
    if rng.random() < 0.35:
        question = british(question)
    if rng.random() < 0.08:
        question = rng.choice(["Please tell me: ", "Tell me, ", "Hey, "]) + question[0].lower() + question[1:]
    elif rng.random() < 0.18:
        question = question[0].lower() + question[1:]
    if rng.random() < 0.15:
        question = question.rstrip("?.")
    if rng.random() < 0.05:
        question += rng.choice([" Answer with one word.", " Answer in one word.", " Answer briefly."])
    return question


def nth(rng: Random, index: int, total: int) -> str:
    """A name for picture number `index` (from 0) of `total`."""
    picture = rng.choice(["image", "image", "picture"])
    roll = rng.random()
    if roll < 0.45:
        return f"{picture} {index + 1}"
    if index == total - 1 and roll > 0.9:
        return f"the last {picture}"
    return f"the {(ORDINALS if roll < 0.85 else _SHORT)[index]} {picture}"


def article(phrase: str) -> str:
    """`phrase` with its indefinite article."""
    return ("an " if phrase[0] in "aeio" else "a ") + phrase


def sentence(phrase: str) -> str:
    """`phrase` as a sentence."""
    return phrase[0].upper() + phrase[1:] + "."


def listing(parts: list[str]) -> str:
    """`a, b and c`."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
