"""Training: `python -m tiny_vlm.train --help`; the commands used are in README.md."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import time
from pathlib import Path
from random import Random

import torch
from torch import Tensor, nn
from torch.nn import functional

from tiny_vlm import batches
from tiny_vlm import model as models
from tiny_vlm.auxiliary import Auxiliary
from tiny_vlm.batches import Batch, Encoder
from tiny_vlm.optim import optimizers

PAIR_LAYER = 1  # after which layer picture two's states must know picture one
TOKENIZER_FILES = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]


def arguments() -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--out", type=Path, required=True, help="where checkpoints go")
    p.add_argument("--tokenizer", type=Path, required=True, help="a folder with tokenizer files")
    p.add_argument("--resume", type=Path, help="checkpoint to continue from")
    p.add_argument("--minutes", type=float, default=30, help="budget in minutes of CPU time")
    p.add_argument("--deadline", type=float, default=0, help="stop at this Unix time at the latest")
    p.add_argument("--muon", type=float, default=0.01)
    p.add_argument("--adam", type=float, default=1.5e-3)
    p.add_argument("--decay-from", type=float, default=0.3, help="part of the budget before the rate falls")
    p.add_argument("--end", type=float, default=0.0, help="rate at the end, relative")
    p.add_argument("--warm", type=int, default=50, help="steps of rising rate")
    p.add_argument("--fit-heads", type=int, default=0, help="batches to fit the heads to before training")
    p.add_argument("--tokens", type=int, default=3000, help="tokens per batch, about")
    p.add_argument("--tiers", default="small=50,middle=28,big=22", help="how often each tier of sizes is drawn")
    p.add_argument("--plain", type=float, default=0.4, help="share of scenes as plain as a first test")
    p.add_argument("--mix", default="single=40,compare=22,multi=31,text=7", help="how often each kind is drawn")
    p.add_argument("--freeze-vision", action="store_true", help="train the language model only")
    p.add_argument("--aux", type=float, default=0.5)
    p.add_argument("--pair", type=float, default=0.5)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--check", type=int, default=1500, help="tokens per kind and tier when checking accuracy")
    p.add_argument("--save-every", type=float, default=180, help="seconds between checkpoints")
    return p.parse_args()


class Trainer:
    """Model, heads and optimizers."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.encoder = Encoder(args.tokenizer)
        self.model = models.load(args.resume, self.encoder.special)
        self.model.model.visual.requires_grad_(not args.freeze_vision)
        self.vision = models.Vision(self.model.model.visual)
        self.heads, self.pair_heads = Auxiliary(), Auxiliary()
        kept = args.resume / "heads.pt" if args.resume else None
        if kept and kept.exists():
            state = torch.load(kept)
            self.heads.load_state_dict(state["heads"])
            self.pair_heads.load_state_dict(state["pair_heads"])
        extra = [*self.heads.parameters(), *self.pair_heads.parameters()]
        self.everything = [*self.model.parameters(), *extra]
        self.optimizers = optimizers(self.model, extra, args.muon, args.adam)
        self.rates = [g["lr"] for o in self.optimizers for g in o.param_groups]

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None, list[Tensor]]:
        """Logits and targets of the answer tokens, picture features, hidden states."""
        visual, levels = None, []
        if batch.order is not None:
            found = [self.vision(p, (s[1] // 16, s[0] // 16)) for s, p in batch.groups.items()]
            visual = torch.cat([f for f, _ in found])[batch.order]
            levels = [torch.cat(parts)[batch.order] for parts in zip(*[lv for _, lv in found], strict=True)]
        at = (batch.answer[1:] >= 0).nonzero()[:, 0]
        hidden, states = models.language(self.model, batch.packed, visual, levels, at)
        logits = functional.linear(hidden, self.model.lm_head.weight)
        return logits, batch.packed.ids[at + 1], visual, states

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """The whole training loss and what to log."""
        logits, wanted, visual, states = self.forward(batch)
        each = functional.cross_entropy(logits, wanted, reduction="none")
        loss = (each * batch.weight).sum() / batch.weight.sum()
        log = {"ce": loss.item(), "acc": float((logits.argmax(-1) == wanted).float().mean())}
        if visual is not None and batch.targets is not None and not self.args.freeze_vision:
            extra, accuracy = self.heads.loss(visual, batch.targets)
            loss = loss + self.args.aux * extra
            log |= accuracy
        if batch.pairs is not None and batch.targets is not None and self.args.pair > 0:
            extra, accuracy = self.pair_heads.loss(self.known(batch, states), batch.targets[batch.pairs[0]])
            loss = loss + self.args.pair * extra
            log |= {f"pair_{k}": v for k, v in accuracy.items() if k in ("digit0", "shape", "colour")}
        return loss, log

    def known(self, batch: Batch, states: list[Tensor]) -> Tensor:
        """What the language model holds, early on, at every cell of the second picture of a pair."""
        assert batch.pairs is not None
        rows = (batch.packed.ids == self.encoder.image).nonzero()[:, 0][batch.pairs[1]]
        return states[PAIR_LAYER][rows]

    def fit_heads(self, draws: list[Batch], steps: int = 120) -> None:
        """Fit the heads alone, so that their gradients mean something from the first step on."""
        seen: list[tuple[Tensor, Tensor]] = []
        paired: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():
            for batch in draws:
                _, _, visual, states = self.forward(batch)
                assert visual is not None
                assert batch.targets is not None
                seen.append((visual, batch.targets))
                if batch.pairs is not None:
                    paired.append((self.known(batch, states), batch.targets[batch.pairs[0]]))
        for heads, data in ((self.heads, seen), (self.pair_heads, paired)):
            features, wanted = (torch.cat(parts) for parts in zip(*data, strict=True))
            optimizer = torch.optim.Adam(heads.parameters(), lr=0.02)
            accuracy: dict[str, float] = {}
            for step in range(steps):
                optimizer.param_groups[0]["lr"] = 0.02 * (1 - step / steps)
                optimizer.zero_grad()
                loss, accuracy = heads.loss(features, wanted)
                loss.backward()
                optimizer.step()
            print("heads", len(features), {k: round(v, 3) for k, v in accuracy.items()}, flush=True)

    def update(self, loss: Tensor, factor: float) -> None:
        """Backward and one optimizer step at `factor` of the full rate."""
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        groups = [g for o in self.optimizers for g in o.param_groups]
        for group, rate in zip(groups, self.rates, strict=True):
            group["lr"] = rate * factor
        for optimizer in self.optimizers:
            optimizer.step()
        for p in self.everything:
            p.grad = None

    @torch.no_grad()
    def accuracy(self, tokens: int = 6000, seed: int = 777) -> dict[str, str]:
        """Teacher-forced exact match per task, on the same questions every time."""
        right: dict[str, list[bool]] = {}
        rng = Random(seed)
        for tier in batches.TIERS:
            for kind in ("single", "compare", "multi"):
                batch = batches.draw(rng, self.encoder, tier, tokens, kind, turns=2)
                logits, wanted, _, _ = self.forward(batch)
                hit = logits.argmax(-1) == wanted
                index = batch.answer[batch.answer >= 0]
                for i, task in enumerate(batch.tasks):
                    right.setdefault(task, []).append(bool(hit[index == i].all()))
        return {k: f"{sum(v) / len(v):.2f}({len(v)})" for k, v in sorted(right.items())}

    def save(self) -> None:
        """Write a checkpoint that transformers loads, and the heads to continue with."""
        fresh = self.args.out.with_name(self.args.out.name + ".new")
        self.model.save_pretrained(fresh)
        torch.save({"heads": self.heads.state_dict(), "pair_heads": self.pair_heads.state_dict()}, fresh / "heads.pt")
        for name in TOKENIZER_FILES:
            shutil.copyfile(self.args.tokenizer / name, fresh / name)
        (fresh / "preprocessor_config.json").write_text(json.dumps(models.PREPROCESSOR, indent=1))
        shutil.rmtree(self.args.out, ignore_errors=True)
        fresh.rename(self.args.out)


class Clock:
    """How much of the budget is gone, in CPU time and, with a deadline, in wall time."""

    def __init__(self, minutes: float, deadline: float) -> None:
        self.budget, self.deadline = minutes * 60, deadline
        self.cpu, self.wall = time.process_time(), time.time()

    def progress(self) -> float:
        """0 at the start, 1 at the end."""
        done = (time.process_time() - self.cpu) / self.budget
        if self.deadline:
            done = max(done, (time.time() - self.wall) / max(1.0, self.deadline - self.wall))
        return done


def _weights(text: str) -> tuple[list[str], list[float]]:
    pairs = [part.split("=") for part in text.split(",")]
    return [name for name, _ in pairs], [float(weight) for _, weight in pairs]


def train(args: argparse.Namespace) -> None:
    """Train until the budget is spent, or SIGTERM asks for a checkpoint and the end."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    trainer, rng, clock = Trainer(args), Random(args.seed), Clock(args.minutes, args.deadline)
    names, weights = _weights(args.tiers)
    batches.MIX.update(zip(*_weights(args.mix), strict=True))
    mean: dict[str, float] = {}
    step, saved, logged, images, saves = 0, time.time(), time.time(), 0, 0
    if args.fit_heads:
        draws = [batches.draw(rng, trainer.encoder, names[0], args.tokens, k) for k in ("single", "compare")]
        draws += [
            batches.draw(rng, trainer.encoder, rng.choices(names, weights)[0], args.tokens)
            for _ in range(args.fit_heads)
        ]
        trainer.fit_heads(draws)
    while (done := clock.progress()) < 1 and not asked:
        fall = min(1.0, (1 - done) / (1 - args.decay_from)) if args.decay_from < 1 else 1.0
        factor = min(1.0, (step + 1) / args.warm) * max(fall, args.end)
        batch = batches.draw(rng, trainer.encoder, rng.choices(names, weights)[0], args.tokens, plain=args.plain)
        loss, log = trainer.loss(batch)
        trainer.update(loss, factor)
        step, images = step + 1, images + sum(len(g) for g in batch.groups.values())
        for key, value in log.items():
            mean[key] = 0.97 * mean.get(key, value) + 0.03 * value
        if time.time() - logged > 30:
            logged = time.time()
            shown = " ".join(f"{k} {v:.3f}" for k, v in sorted(mean.items()))
            print(
                f"{time.time() - clock.wall:5.0f}s {done:.3f} step {step} images {images} rate {factor:.3f} {shown}",
                flush=True,
            )
        if time.time() - saved > args.save_every:
            saved = time.time()
            trainer.save()
            saves += 1
        if saves == 4:
            saves = 0
            print("EVAL", trainer.accuracy(args.check), flush=True)
    trainer.save()
    if not asked:
        print("FINAL", trainer.accuracy(4 * args.check), flush=True)


if __name__ == "__main__":
    train(arguments())
