"""Accuracy per task: `python -m tiny_vlm.evaluate MODEL --n 100`; tests use `samples`.

An answer counts as right if it is exactly the expected one.  A greedy answer is exactly the expected
one if and only if every token of it is the likeliest after those before, so one forward pass over
question and expected answer decides it; `--generate` checks that with transformers' `generate`.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from PIL import Image
from transformers import PreTrainedTokenizerFast, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tiny_vlm import drawing, sketches
from tiny_vlm.batches import TIERS, sizes
from tiny_vlm.conversations import Conversation, conversation

KIND_OF = {
    "single": ["colour", "shape", "both", "digits", "count", "is_there", "background", "caption", "json", "where"],
    "compare": ["compare", "same"],
    "multi": ["multi_colour", "multi_shape", "multi_digits", "multi_caption", "multi_list", "which", "how_many_images"],
    "text": ["talk", "sum", "count_to", "repeat", "story"],
}
TASKS = [*sketches.TASKS, *[task for tasks in KIND_OF.values() for task in tasks]]


@dataclass(frozen=True)
class Sample:
    """One question: pictures, the messages up to the answer, and the answer."""

    images: list[Image.Image]
    messages: list[dict[str, Any]]
    expected: str

    def matches(self, answer: str) -> bool:
        """Whether `answer` is the expected one."""
        return answer.strip() == self.expected


def _from_talk(talk: Conversation, task: str) -> Sample | None:
    """The first turn, if it is of that task."""
    if not talk.tasks or talk.tasks[0] != task:
        return None
    at = next(i for i, m in enumerate(talk.messages) if m["role"] == "assistant")
    return Sample([drawing.render(s) for s in talk.scenes], talk.messages[:at], talk.messages[at]["content"])


def _sketched(rng: Random, task: str) -> Sample:
    images, question, answer = sketches.TASKS[task](rng)
    content = [*[{"type": "image"} for _ in images], {"type": "text", "text": question}]
    return Sample(images, [{"role": "user", "content": content}], answer)


def samples(task: str, n: int, seed: int, tier: str | None = None) -> list[Sample]:
    """`n` fresh questions of a task, over pictures of a tier of sizes or of any size."""
    rng = Random(f"{task} {seed}")
    if task in sketches.TASKS:
        return [_sketched(rng, task) for _ in range(n)]
    kind = next(k for k, tasks in KIND_OF.items() if task in tasks)
    found: list[Sample] = []
    while len(found) < n:
        chosen = sizes(rng, tier or rng.choice(list(TIERS)))
        sample = _from_talk(conversation(rng, kind, chosen, turns=1), task)
        if sample:
            found.append(sample)
    return found


class Judge:
    """The model, its tokenizer and its image processor."""

    def __init__(self, path: Path, dtype: torch.dtype = torch.float32) -> None:
        self.model = Qwen3VLForConditionalGeneration.from_pretrained(path, dtype=dtype).eval()
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
        self.processor = Qwen2VLImageProcessorPil.from_pretrained(path)

    def inputs(self, sample: Sample) -> dict[str, torch.Tensor]:
        """What transformers' own processor would make of the sample."""
        text = self.tokenizer.apply_chat_template(sample.messages, tokenize=False, add_generation_prompt=True)
        extra: dict[str, torch.Tensor] = {}
        if sample.images:
            extra = dict(self.processor(images=sample.images, return_tensors="pt"))
            for grid in extra["image_grid_thw"]:
                text = text.replace("<|image_pad|>", "<pad>" * int(grid.prod() // 4), 1)
            text = text.replace("<pad>", "<|image_pad|>")
        ids = torch.tensor([self.tokenizer.encode(text, add_special_tokens=False)])
        return extra | {"input_ids": ids}

    def _complete(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        ids = inputs["input_ids"]
        kinds = (ids == self.model.config.image_token_id).int()
        return inputs | {"attention_mask": torch.ones_like(ids), "mm_token_type_ids": kinds}

    @torch.inference_mode()
    def right(self, sample: Sample) -> bool:
        """Whether greedy decoding would give exactly the expected answer."""
        inputs = self.inputs(sample)
        end = self.model.config.text_config.eos_token_id
        answer = torch.tensor([[*self.tokenizer.encode(sample.expected, add_special_tokens=False), end]])
        n = answer.shape[1]
        inputs["input_ids"] = torch.cat([inputs["input_ids"], answer], 1)
        logits = self.model(**self._complete(inputs), logits_to_keep=n + 1).logits
        return bool((logits[0, :-1].argmax(-1) == answer[0]).all())

    @torch.inference_mode()
    def answer(self, sample: Sample, limit: int = 200) -> str:
        """The greedy answer."""
        inputs = self._complete(self.inputs(sample))
        out = self.model.generate(**inputs, max_new_tokens=limit, do_sample=False)
        return self.tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def floor(accuracy: float, n: int, tested: int = 25) -> float:
    """What a test with `tested` samples can ask for: three binomial standard deviations below."""
    likely = (accuracy * n + 1) / (n + 2)  # 100 of 100 does not prove 1.0
    return max(0.0, round(likely - 3 * (likely * (1 - likely) / tested) ** 0.5, 2))


def evaluate(
    judge: Judge, n: int, seed: int, tasks: list[str], tier: str | None = None, generate: bool = False
) -> dict[str, dict[str, float]]:
    """Accuracy, number of samples, and the floor for a test, per task."""
    result = {}
    for task in tasks:
        began = time.time()
        right = 0
        for sample in samples(task, n, seed, tier):
            right += sample.matches(judge.answer(sample)) if generate else judge.right(sample)
        share = right / n
        result[task] = {"accuracy": round(share, 4), "n": n, "floor": floor(share, n)}
        print(f"{task:20s} {share:.3f} of {n}, {time.time() - began:.1f} s", flush=True)
    return result


def main() -> None:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("model", type=Path)
    p.add_argument("--n", type=int, default=100, help="samples per task")
    p.add_argument("--seed", type=int, default=20261)
    p.add_argument("--tasks", nargs="*", default=TASKS)
    p.add_argument("--tier", choices=list(TIERS))
    p.add_argument("--dtype", default="float32")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--generate", action="store_true", help="let transformers generate every answer")
    p.add_argument("--json", type=Path, help="write the figures there")
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    judge = Judge(args.model, getattr(torch, args.dtype))
    result = evaluate(judge, args.n, args.seed, args.tasks, args.tier, args.generate)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
