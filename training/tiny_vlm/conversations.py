"""Whole conversations: pictures, messages, and the task of every answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tiny_vlm import changes, phrasing, questions, small_talk
from tiny_vlm.questions import Question
from tiny_vlm.scenes import PLAIN, Scene, scene_for

SYSTEMS = ["You are a helpful assistant.", "Answer briefly.", "You are TinyVLM."]
KINDS = ["single", "compare", "multi", "text"]
_SAME = [
    "Are the two images the same?",
    "Are these images the same?",
    "Are both images the same?",
    "Same or different?",
]
_CHANGED = [
    "What changed?",
    "What changed between image 1 and image 2?",
    "What is different?",
    "Compare the images.",
    "What is the difference?",
    "What changed between the two images?",
]
Size = tuple[int, int]
Part = dict[str, Any]


@dataclass
class Conversation:
    """Messages with `{"type": "image"}` parts, one scene for each of them, in order."""

    scenes: list[Scene] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)

    def turn(self, task: str, content: str | list[Part], answer: str) -> None:
        """Add a user message and its answer."""
        self.messages.append({"role": "user", "content": content})
        self.messages.append({"role": "assistant", "content": answer})
        self.tasks.append(task)


def _text(text: str) -> Part:
    return {"type": "text", "text": text}


def _with_pictures(rng: Random, n: int, question: str) -> list[Part]:
    """The first user message: pictures, perhaps labelled, then the question (seldom before them)."""
    picture: Part = {"type": "image"}
    if rng.random() < 0.1 or (n == 1 and rng.random() < 0.1):
        return [_text(question), *[picture] * n]
    if n == 1 or rng.random() < 0.5:
        return [*[picture] * n, _text(question)]
    label, end = rng.choice([("Image {}: ", " "), ("Image {}: ", " "), ("Picture {}:\n", "\n"), ("Image {}:", "")])
    parts: list[Part] = []
    for i in range(n):
        parts += [_text((end if i else "") + label.format(i + 1)), picture]
    return [*parts, _text((end or " ") + question)]


def _ask(rng: Random, talk: Conversation, asked: list[Question]) -> None:
    for i, q in enumerate(asked):
        content = _with_pictures(rng, len(talk.scenes), q.text) if i == 0 else q.text
        talk.turn(q.task, content, q.answer)


def _select(rng: Random, pool: list[Question], turns: int) -> list[Question]:
    """Some of the questions; one that gives away the others only comes last."""
    pool = pool[:]
    rng.shuffle(pool)
    safe = [q for q in pool if not q.leaks]
    leaking = [q for q in pool if q.leaks]
    seen: set[str] = set()
    chosen = [q for q in safe if not (q.text in seen or seen.add(q.text))]  # type: ignore[func-returns-value]
    chosen.sort(key=lambda q: q.task != "digits" or rng.random() < 0.4)
    chosen = chosen[:turns]
    if leaking and rng.random() < 0.35:
        chosen = [*chosen[:-1], rng.choice(leaking)]
    return chosen


def single(rng: Random, sizes: list[Size], turns: int, plain: float) -> Conversation:
    """One picture and some questions."""
    talk = Conversation([scene_for(rng, rng.choice(sizes), plain)])
    _ask(rng, talk, _select(rng, questions.about(rng, talk.scenes[0]), turns))
    return talk


def compare(rng: Random, sizes: list[Size], turns: int, plain: float) -> Conversation:
    """Two pictures of one scene."""
    before, after, answer = changes.change(rng, scene_for(rng, rng.choice(sizes), plain))
    talk = Conversation([before, after])
    what = Question("compare", phrasing.vary(rng, rng.choice(_CHANGED)), answer)
    if rng.random() < 0.25:
        verdict = "yes" if answer == changes.NOTHING else "no"
        text = rng.choice(_SAME)
        if text.startswith("Same"):
            verdict = "same" if verdict == "yes" else "different"
        _ask(rng, talk, [Question("same", phrasing.vary(rng, text), verdict), what][:turns])
    else:
        _ask(rng, talk, [what])
    return talk


def _about_one(rng: Random, scenes: list[Scene], i: int) -> list[Question]:
    """Questions about picture `i` among several."""
    scene, n = scenes[i], len(scenes)
    out = []
    if len(scene.shapes) == 1:
        shape = scene.shapes[0]
        colour = rng.choice(
            ["What color is the shape in {}?", "What is the color of the shape in {}?", "Which color is in {}?"]
        )
        kind = rng.choice(["What shape is in {}?", "Which shape is in {}?", "What shape does {} show?"])
        out.append(Question("multi_colour", colour.format(phrasing.nth(rng, i, n)), shape.colour))
        out.append(Question("multi_shape", kind.format(phrasing.nth(rng, i, n)), shape.kind))
    if scene.shapes or scene.number:
        text = rng.choice(["What is in {}?", "What does {} show?", "Describe {}."]).format(phrasing.nth(rng, i, n))
        out.append(Question("multi_caption", text, phrasing.sentence(questions.things(scene)), leaks=True))
    if scene.number:
        text = rng.choice(["What number is in {}?", "Which number is in {}?", "Read the number in {}."])
        out.append(Question("multi_digits", text.format(phrasing.nth(rng, i, n)), scene.number.text))
    return out + _which(rng, scenes, i) * 2


def _which(rng: Random, scenes: list[Scene], i: int) -> list[Question]:
    """Questions "Which picture has ..." for things that only picture `i` has."""
    everything = [s for scene in scenes for s in scene.shapes]
    wordings: list[str] = []
    for shape in scenes[i].shapes:
        if sum(questions.name(s) == questions.name(shape) for s in everything) == 1:
            wordings.append(f"the {questions.name(shape)}")
            wordings.append(phrasing.article(questions.name(shape)))
        if sum(s.kind == shape.kind for s in everything) == 1:
            wordings.append(rng.choice(["the " + shape.kind, phrasing.article(shape.kind)]))
        if sum(s.colour == shape.colour for s in everything) == 1:
            wordings.append(rng.choice([f"the {shape.colour} shape", phrasing.article(f"{shape.colour} shape")]))
    numbers = [s.number.text for s in scenes if s.number]
    number = scenes[i].number
    if number and numbers.count(number.text) == 1 and rng.random() < 0.5:
        wordings.append(f"the number {number.text}")
    if not wordings:
        return []
    verb = rng.choice(["has", "has", "shows", "contains"])
    return [Question("which", f"Which image {verb} {rng.choice(wordings)}?", f"image {i + 1}")]


def _about_all(rng: Random, scenes: list[Scene]) -> list[Question]:
    """Questions answered by a list in the order of the pictures."""
    n = len(scenes)
    out = [
        Question("how_many_images", rng.choice(["How many images are there?", "How many images do you see?"]), str(n))
    ]
    shapes = [s.shapes[0] for s in scenes if len(s.shapes) == 1]
    if len(shapes) == n:
        text = rng.choice(
            ["List the colors of the shapes in order.", "What colors are the shapes?", "Name the color in each image."]
        )
        out.append(Question("multi_list", text, ", ".join(s.colour for s in shapes), leaks=True))
        text = rng.choice(
            ["List the shapes in order.", "What shapes are in the images?", "Name the shape in each image."]
        )
        out.append(Question("multi_list", text, ", ".join(s.kind for s in shapes), leaks=True))
        text = rng.choice(
            [
                "What is in each image?",
                "Describe each image.",
                "What do the images show?",
                "Describe the images in order.",
            ]
        )
        out.append(
            Question(
                "multi_list",
                text,
                phrasing.sentence(", ".join(phrasing.article(questions.name(s)) for s in shapes)),
                leaks=True,
            )
        )
    numbers = [s.number.text for s in scenes if s.number]
    if len(numbers) > 1:
        out.append(
            Question("multi_digits", rng.choice(["Read the numbers.", "What are the numbers?"]), ", ".join(numbers))
        )
    return out


def _how_many_pictures(rng: Random, sizes: list[Size]) -> int:
    tokens = max(w * h for w, h in sizes) // 1024
    most = max(2, min(6, 700 // tokens))
    return min(most, rng.choice([2, 2, 2, 3, 3, 3, 3, 4, 5, 6]))


def multi(rng: Random, sizes: list[Size], turns: int, plain: float) -> Conversation:
    """Two to six unrelated pictures."""
    n = _how_many_pictures(rng, sizes)
    size = rng.choice(sizes)
    mixed = rng.random() < 0.4
    talk = Conversation()
    simple = rng.random() < 0.55
    for _ in range(n):
        count = 1 if simple else rng.choice([1, 1, 1, 2, 3])
        number = False if simple and rng.random() < 0.8 else None
        at = rng.choice(sizes) if mixed else size
        talk.scenes.append(scene_for(rng, at, plain, count=count, number=number, distinct=count > 1 and count < 3))
    pool = _about_all(rng, talk.scenes)
    for i in range(n):
        pool += _about_one(rng, talk.scenes, i)
    pool = [Question(q.task, phrasing.vary(rng, q.text), q.answer, q.leaks) for q in pool]
    _ask(rng, talk, _select(rng, pool, turns))
    return talk


def text(rng: Random, _sizes: list[Size], turns: int, _plain: float) -> Conversation:
    """No picture at all."""
    talk = Conversation()
    for _ in range(min(turns, 3)):
        talk.turn(*small_talk.turn(rng))
    return talk


_MAKERS: dict[str, Callable[[Random, list[Size], int, float], Conversation]] = {
    "single": single,
    "compare": compare,
    "multi": multi,
    "text": text,
}


def conversation(
    rng: Random, kind: str, sizes: list[Size], turns: int | None = None, plain: float = PLAIN
) -> Conversation:
    """A random conversation whose pictures have one of `sizes` (after the image processor)."""
    talk = _MAKERS[kind](rng, sizes, turns or rng.choice([1, 1, 2, 3, 4, 5, 6]), plain)
    if rng.random() < 0.15:
        talk.messages.insert(0, {"role": "system", "content": rng.choice(SYSTEMS)})
    return talk
