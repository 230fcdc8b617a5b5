"""Conversations to tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from tiny_vlm import auxiliary, drawing
from tiny_vlm.conversations import Conversation, Size, conversation
from tiny_vlm.model import CELL, MERGE, PATCH, Packed
from tiny_vlm.scenes import PLAIN

TIERS: dict[str, dict[Size, float]] = {
    "small": {
        (64, 64): 0.3,
        (96, 96): 0.7,
        (128, 128): 2,
        (128, 96): 0.7,
        (160, 128): 1,
        (160, 160): 2,
        (192, 128): 1,
        (128, 192): 1,
        (192, 192): 2,
        (224, 160): 1,
        (224, 224): 2,
    },
    "middle": {
        (256, 256): 3,
        (256, 192): 1,
        (192, 256): 1,
        (288, 288): 1,
        (320, 224): 1,
        (224, 320): 1,
        (320, 256): 1,
        (320, 320): 2,
    },
    "big": {
        (384, 384): 1,
        (448, 448): 3,
        (416, 320): 1,
        (320, 448): 1,
        (512, 512): 1.5,
        (512, 384): 1,
        (576, 448): 0.5,
        (448, 576): 0.5,
        (640, 384): 0.5,
        (480, 480): 0.7,
    },
}
MIX = {"single": 40, "compare": 22, "multi": 31, "text": 7}
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]


def patchify(images: list[Image.Image]) -> Tensor:
    """Pictures of one size -> (B, N, 3*16*16) patches in merge order, normalised to [-1, 1]."""
    x = np.stack([np.asarray(i, dtype=np.float32) for i in images]) / 127.5 - 1.0
    b, h, w, _ = x.shape
    x = x.reshape(b, h // CELL, MERGE, PATCH, w // CELL, MERGE, PATCH, 3).transpose(0, 1, 4, 2, 5, 7, 3, 6)
    return torch.from_numpy(np.ascontiguousarray(x)).reshape(b, -1, 3 * PATCH * PATCH)


class Encoder:
    """Tokens and positions of a conversation, as chat template and processor make them."""

    def __init__(self, path: Path) -> None:
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
        self.special = {t: int(self.tokenizer.convert_tokens_to_ids(t)) for t in SPECIAL}
        self.image = self.special["<|image_pad|>"]
        self._cache: dict[str, list[int]] = {}

    def tokens(self, text: str) -> list[int]:
        """Token ids of plain text."""
        if text not in self._cache:
            if len(self._cache) > 50000:
                self._cache.clear()
            self._cache[text] = self.tokenizer.encode(text, add_special_tokens=False)
        return self._cache[text]

    def message(self, message: dict[str, Any], grids: list[Size]) -> list[int]:
        """One message's content; takes its pictures' grids off the front of `grids`."""
        content = message["content"]
        if isinstance(content, str):
            return self.tokens(content)
        ids: list[int] = []
        for part in content:
            if part["type"] == "text":
                ids += self.tokens(part["text"])
                continue
            gh, gw = grids.pop(0)
            ids += [self.special["<|vision_start|>"], *[self.image] * (gh * gw), self.special["<|vision_end|>"]]
        return ids

    def conversation(self, talk: Conversation, grids: list[Size]) -> tuple[list[int], list[int]]:
        """Token ids, and for each the index of the answer it belongs to, or -1."""
        ids: list[int] = []
        answer: list[int] = []
        turn, left = 0, list(grids)
        newline, end = self.tokens("\n"), self.special["<|im_end|>"]
        for message in talk.messages:
            head = [self.special["<|im_start|>"], *self.tokens(message["role"] + "\n")]
            body = [*self.message(message, left), end]
            mine = message["role"] == "assistant"
            ids += head + body + newline
            answer += [-1] * len(head) + [turn if mine else -1] * len(body) + [-1] * len(newline)
            turn += mine
        return ids, answer

    def positions(self, ids: list[int], grids: list[Size]) -> np.ndarray:
        """(3, L) temporal, vertical and horizontal positions."""
        out = np.zeros((3, len(ids)), np.int64)
        at = i = picture = 0
        while i < len(ids):
            if ids[i] != self.image:
                out[:, i] = at
                at, i = at + 1, i + 1
                continue
            gh, gw = grids[picture]
            span = slice(i, i + gh * gw)
            out[0, span] = at
            out[1, span] = at + np.repeat(np.arange(gh), gw)
            out[2, span] = at + np.tile(np.arange(gw), gh)
            at, i, picture = at + max(gh, gw), i + gh * gw, picture + 1
        return out


@dataclass
class Batch:
    """Packed conversations and their pictures, grouped by size."""

    packed: Packed
    answer: Tensor  # (T,) index of the answer a token belongs to, over the whole batch, or -1
    weight: Tensor  # of every answer token: a long answer counts more than a short one, but not by its length
    tasks: list[str] = field(default_factory=list)  # task of every answer
    groups: dict[Size, Tensor] = field(default_factory=dict)  # patches
    order: Tensor | None = None  # feature row of every picture token
    targets: Tensor | None = None  # auxiliary targets of every picture token
    pairs: tuple[Tensor, Tensor] | None = None  # picture-token rows of the pictures of pairs


def _grid(size: Size) -> Size:
    return size[1] // CELL, size[0] // CELL


def collate(encoder: Encoder, talks: list[Conversation]) -> Batch:
    """Pack conversations into one batch."""
    ids: list[int] = []
    answer: list[int] = []
    positions, lengths, tasks = [], [], []
    for talk in talks:
        grids = [_grid(s.processed) for s in talk.scenes]
        tokens, marks = encoder.conversation(talk, grids)
        answer += [m + len(tasks) if m >= 0 else -1 for m in marks]
        ids += tokens
        lengths.append(len(tokens))
        positions.append(encoder.positions(tokens, grids))
        tasks += talk.tasks
    packed = Packed(torch.tensor(ids), torch.from_numpy(np.concatenate(positions, 1)), lengths)
    owner = torch.tensor(answer)
    of = owner[owner >= 0]
    weight = torch.bincount(of).float().rsqrt()[of]
    batch = Batch(packed, owner, weight, tasks)
    if any(talk.scenes for talk in talks):
        _add_pictures(batch, talks)
    return batch


def _add_pictures(batch: Batch, talks: list[Conversation]) -> None:
    scenes = [s for talk in talks for s in talk.scenes]
    by_size: dict[Size, list[int]] = {}
    for i, scene in enumerate(scenes):
        by_size.setdefault(scene.processed, []).append(i)
    rows: dict[int, np.ndarray] = {}
    offset = 0
    for size, members in by_size.items():
        batch.groups[size] = patchify([drawing.processed(scenes[i]) for i in members])
        cells = int(np.prod(_grid(size)))
        for i in members:
            rows[i] = np.arange(offset, offset + cells)
            offset += cells
    batch.order = torch.from_numpy(np.concatenate([rows[i] for i in range(len(scenes))]))
    batch.targets = torch.from_numpy(np.concatenate([auxiliary.targets(s) for s in scenes]))
    starts = np.cumsum([0] + [len(rows[i]) for i in range(len(scenes))])
    first: list[np.ndarray] = []
    second: list[np.ndarray] = []
    at = 0
    for talk in talks:
        if "compare" in talk.tasks or "same" in talk.tasks:
            first.append(np.arange(starts[at], starts[at + 1]))
            second.append(np.arange(starts[at + 1], starts[at + 2]))
        at += len(talk.scenes)
    if first:
        batch.pairs = torch.from_numpy(np.concatenate(first)), torch.from_numpy(np.concatenate(second))


def sizes(rng: Random, tier: str, n: int = 2) -> list[Size]:
    """Some picture sizes of a tier."""
    options = TIERS[tier]
    return rng.choices(list(options), list(options.values()), k=n)


def draw(
    rng: Random,
    encoder: Encoder,
    tier: str,
    tokens: int,
    kind: str | None = None,
    turns: int | None = None,
    plain: float = PLAIN,
) -> Batch:
    """A batch of about `tokens` tokens of random conversations over pictures of one tier."""
    chosen = sizes(rng, tier)
    talks: list[Conversation] = []
    used = 0
    while used < tokens:
        which = kind or rng.choices(list(MIX), list(MIX.values()))[0]
        talk = conversation(rng, which, chosen, turns, plain)
        if not talk.tasks:
            continue
        talks.append(talk)
        used += sum(s.processed[0] * s.processed[1] // CELL**2 for s in talk.scenes) + 25 * len(talk.tasks)
    return collate(encoder, talks)
