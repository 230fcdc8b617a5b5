"""Decoders under test: small random text models, and a driver that computes sequences in any cut and company."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from chiasm.engines.embedded.decoder.base import Decoder, DeepstackRows
from chiasm.engines.embedded.decoder.low_rank import ArrangedAdapter, adapted_rows
from chiasm.engines.embedded.decoder.native_decoder import NativeDecoder, kernels_for
from chiasm.engines.embedded.decoder.torch_decoder import TorchDecoder
from chiasm.engines.embedded.families.base import LoadedModel
from chiasm.engines.embedded.kv import SlotKV
from chiasm.scheduling.scheduler import Chunk
from chiasm.scheduling.scheduler import Sequence as Scheduled
from tests.numeric.random_models import TEXT

MAX_TOKENS = 160
NUM_SLOTS = 8
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {"model_type": "llama"},
    "biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "vocab_size": 391},
    "bias of queries, keys, values": {"model_type": "qwen2", "num_key_value_heads": 4},
    "norms of queries and keys": {"model_type": "qwen3", "head_dim": 32},
    "odd sizes": {
        "model_type": "llama",
        "hidden_size": 72,
        "intermediate_size": 101,
        "num_attention_heads": 6,
        "num_key_value_heads": 1,
        "head_dim": 24,
        "vocab_size": 397,
    },
    "one query head per key head, wide": {
        "model_type": "qwen3",
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 144,
        "num_hidden_layers": 2,
    },
    "many query heads per key head": {
        "model_type": "llama",
        "hidden_size": 80,
        "num_attention_heads": 20,
        "num_key_value_heads": 1,
        "head_dim": 8,
    },
}


def reference_model(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """A Hugging Face model with weights, norms and biases that matter."""
    config = AutoConfig.for_model(**(TEXT | CONFIGS[name]))
    torch.manual_seed(len(name))
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.mul_(4)
    return model.to(dtype)


def loaded(model: Any) -> LoadedModel:
    return LoadedModel(text=model.model, lm_head=model.lm_head.weight, vision=None)


def native_kinds(name: str) -> list[str]:
    """Variants of the C code that run here and suit the model's heads; none where it was not built."""
    head_dim = CONFIGS[name].get("head_dim", TEXT["hidden_size"] // TEXT["num_attention_heads"])
    return [kind for kind in ("avx512", "avx2", "generic") if kernels_for(head_dim, kind)]


NATIVE = [(name, kind) for name in CONFIGS for kind in native_kinds(name)]
ALL = [(name, kind) for name in CONFIGS for kind in ("torch", "torch unpacked", *native_kinds(name))]


def make(kind: str, model: Any, *, threads: int = 1) -> Decoder:
    if kind.startswith("torch"):
        return TorchDecoder(loaded(model), None, pack=kind == "torch")
    return NativeDecoder(loaded(model), None, threads=threads, kernels=kind, alone_products=0)


def chunk(slot: int, start: int, num_tokens: int) -> Chunk:
    return Chunk(Scheduled(slot, start + num_tokens), slot, start, num_tokens)


@dataclass
class Driver:
    """Computes sequences (token ids), each in the slot and with the adapter of its number.

    Collects their tokens' hidden states.
    """

    decoder: Decoder
    sequences: Sequence[Sequence[int]]
    hidden: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)
    deepstack: DeepstackRows | None = None
    adapters: Mapping[int, ArrangedAdapter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = self.decoder.shape
        self.kv = SlotKV(
            num_layers=self.decoder.num_layers,
            num_slots=NUM_SLOTS,
            num_kv_heads=shape.kv_heads,
            max_tokens=MAX_TOKENS,
            head_dim=shape.head_dim,
            dtype=self.decoder.dtype,
        )

    @torch.inference_mode()
    def step(self, contexts: Sequence[int], *chunks: tuple[int, int, int], wanted: Sequence[int] | None = None) -> None:
        """One token each for the first sequences, and chunks (sequence, start, tokens); collects all or some rows."""
        places = [(number, context) for number, context in enumerate(contexts)]
        for number, start, count in chunks:
            places += [(number, position) for position in range(start, start + count)]
        ids = torch.tensor([self.sequences[number][position] for number, position in places], dtype=torch.long)
        rotary = self.decoder.rotary(np.array([[position for _, position in places]], np.int64))
        x = self.decoder.forward(
            self.decoder.embed(ids),
            rotary,
            self.kv.data,
            np.array(contexts, np.int64),
            [chunk(*c) for c in chunks],
            self.deepstack,
            None if wanted is None else torch.tensor(wanted, dtype=torch.int64),
            adapted_rows((self.adapters.get(number), 1) for number, _ in places),
        )
        places = places if wanted is None else [places[row] for row in wanted]
        assert len(x) == len(places)
        self.hidden |= {place: x[row].clone() for row, place in enumerate(places)}

    def whole(self, number: int) -> torch.Tensor:
        """Hidden states [tokens, hidden] of a sequence."""
        return torch.stack([self.hidden[number, position] for position in range(len(self.sequences[number]))])

    @torch.inference_mode()
    def logits(self, number: int) -> torch.Tensor:
        return self.decoder.logits(self.whole(number))
