"""The tokenizer: a byte-level BPE of 1024 tokens with Qwen's special tokens and chat format.

The packaged tokenizer is frozen, since the weights depend on its ids; it was made from the first
generation of questions.  A model trained from scratch may have one of its own:
`python -m tiny_vlm.tokenizer FOLDER`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tiny_vlm.conversations import KINDS, conversation

VOCABULARY = 1024
SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
TEMPLATE = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.content is string %}{{- m.content }}"
    "{%- else %}{%- for c in m.content %}"
    "{%- if c.type in ('image', 'image_url') or 'image' in c or 'image_url' in c %}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif c.type == 'video' or 'video' in c %}{{- '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- elif 'text' in c %}{{- c.text }}{%- endif %}{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
# Digits stay apart, so that a number is read digit by digit.
_PIECES = r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def corpus(conversations: int, seed: int = 1) -> Iterator[str]:
    """The text of random conversations."""
    rng = Random(seed)
    for _ in range(conversations):
        for message in conversation(rng, rng.choice(KINDS), [(192, 192)]).messages:
            content = message["content"]
            yield message["role"]
            yield from [content] if isinstance(content, str) else [p["text"] for p in content if "text" in p]


def build(conversations: int = 6000) -> PreTrainedTokenizerFast:
    """A tokenizer trained on random conversations."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_PIECES), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(conversations), trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=SPECIAL[2],
        pad_token=SPECIAL[0],
        additional_special_tokens=SPECIAL[1:],
        model_max_length=8192,
    )
    wrapped.chat_template = TEMPLATE
    return wrapped


if __name__ == "__main__":
    build().save_pretrained(Path(sys.argv[1]))
