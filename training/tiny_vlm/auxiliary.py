"""Auxiliary heads: what every 32 x 32 cell of a picture shows.

They make the model trainable in an hour of CPU time: the vision tower learns from a label per cell
instead of one answer per picture.  A second copy of the heads reads the language model's hidden
states of picture two of a pair, and must tell what picture one had in the same cell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tiny_vlm.backgrounds import LABELS
from tiny_vlm.model import CELL
from tiny_vlm.palette import COLOURS
from tiny_vlm.questions import where
from tiny_vlm.scenes import MAX_DIGITS, MAX_SHAPES, SHAPES, Scene

SLOTS = 4  # digits in one cell, each in a strip of 8 pixels
IGNORE = -100
_PLACES = ["center", "top left", "top right", "bottom left", "bottom right"]


@dataclass(frozen=True)
class Head:
    """One classifier per cell; `nothing` is the weight of class 0 where that means "nothing here"."""

    name: str
    classes: int
    weight: float = 1.0
    nothing: float = 1.0


HEADS = [
    *[Head(f"digit{i}", 11, 1.0, 0.15) for i in range(SLOTS)],
    *[Head(f"order{i}", MAX_DIGITS + 1, 0.5, 0.15) for i in range(SLOTS)],
    Head("shape", len(SHAPES) + 1, 1.5, 0.15),
    Head("colour", len(COLOURS) + 1, 1.0, 0.15),
    Head("inside_shape", len(SHAPES) + 1, 0.5, 0.3),
    Head("inside_colour", len(COLOURS) + 1, 0.5, 0.3),
    Head("place", len(_PLACES), 0.3),
    Head("rank", MAX_SHAPES, 0.5),
    Head("same_shape", MAX_SHAPES, 0.3),
    Head("same_colour", MAX_SHAPES, 0.3),
    Head("background", len(LABELS), 0.2),
    Head("total", MAX_SHAPES + 1, 0.3),
    Head("digits", MAX_DIGITS + 1, 0.2),
]
_AT = {h.name: i for i, h in enumerate(HEADS)}
WIDTH = sum(h.classes for h in HEADS)


def targets(scene: Scene) -> np.ndarray:
    """(cells, heads) class indices, cells in reading order."""
    width, height = scene.processed
    gw, gh = width // CELL, height // CELL
    out = np.zeros((gh, gw, len(HEADS)), np.int64)
    for name in ("place", "rank", "same_shape", "same_colour"):
        out[..., _AT[name]] = IGNORE
    out[..., _AT["background"]] = LABELS.index(scene.background.label)
    out[..., _AT["total"]] = len(scene.shapes)
    out[..., _AT["digits"]] = len(scene.number.text) if scene.number else 0
    _mark_digits(scene, out)
    _mark_shapes(scene, out)
    return out.reshape(gh * gw, -1)


def _mark_digits(scene: Scene, out: np.ndarray) -> None:
    if not scene.number:
        return
    gh, gw, _ = out.shape
    sx, sy = scene.processed[0] / scene.width, scene.processed[1] / scene.height
    for i, (digit, (x, y)) in enumerate(zip(scene.number.text, scene.number.centres(), strict=True)):
        col, row = int(x * sx // CELL), int(y * sy // CELL)
        if 0 <= col < gw and 0 <= row < gh:
            slot = int(x * sx % CELL * SLOTS // CELL)
            out[row, col, _AT["digit0"] + slot] = int(digit) + 1
            out[row, col, _AT["order0"] + slot] = i + 1


def _mark_shapes(scene: Scene, out: np.ndarray) -> None:
    gh, gw, _ = out.shape
    sx, sy = scene.processed[0] / scene.width, scene.processed[1] / scene.height
    ordered = scene.left_to_right()
    for rank, shape in enumerate(ordered):
        kind, colour = SHAPES.index(shape.kind) + 1, COLOURS.index(shape.colour) + 1
        left, top, right, bottom = shape.box
        rows = slice(max(0, round(top * sy / CELL)), max(0, round(bottom * sy / CELL)))
        cols = slice(max(0, round(left * sx / CELL)), max(0, round(right * sx / CELL)))
        out[rows, cols, _AT["inside_shape"]] = kind
        out[rows, cols, _AT["inside_colour"]] = colour
        col, row = min(gw - 1, int(shape.x * sx // CELL)), min(gh - 1, int(shape.y * sy // CELL))
        cell = out[row, col]
        cell[_AT["shape"]], cell[_AT["colour"]], cell[_AT["rank"]] = kind, colour, rank
        cell[_AT["same_shape"]] = sum(s.kind == shape.kind for s in ordered) - 1
        cell[_AT["same_colour"]] = sum(s.colour == shape.colour for s in ordered) - 1
        place = where(scene, shape)
        if place:
            cell[_AT["place"]] = _PLACES.index(place)


class Auxiliary(nn.Module):
    """The heads over one hidden size."""

    def __init__(self, hidden: int = 256) -> None:
        super().__init__()
        self.project = nn.Linear(hidden, WIDTH)

    def loss(self, features: Tensor, wanted: Tensor) -> tuple[Tensor, dict[str, float]]:
        """The weighted loss over all heads, and the accuracy of some where there is something."""
        logits = self.project(features).float()
        total = logits.new_zeros(())
        accuracy: dict[str, float] = {}
        for i, (head, part) in enumerate(zip(HEADS, logits.split([h.classes for h in HEADS], 1), strict=True)):
            target = wanted[:, i]
            weights = torch.ones(head.classes)
            weights[0] = head.nothing
            shown = target > 0 if head.nothing < 1 else target != IGNORE
            if head.nothing == 1 and not shown.any():
                continue
            total = total + head.weight * functional.cross_entropy(part, target, weight=weights, ignore_index=IGNORE)
            if head.name in _REPORTED and shown.any():
                accuracy[head.name] = float((part.argmax(1) == target)[shown].float().mean())
        return total / 6, accuracy


_REPORTED = {"digit0", "shape", "colour", "inside_shape", "place", "rank", "total"}
