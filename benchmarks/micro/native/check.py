"""Build the native decoder, compare its greedy tokens with `generate` and time decode steps.

Run: python benchmarks/micro/native/check.py tiny float32 --threads 1   (or: 120m bfloat16)
"""

import argparse
import ctypes
import random
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, Qwen3Config, Qwen3ForCausalLM

HERE = Path(__file__).parent
TINY = HERE.parents[2] / "src/chiasm/models/tiny_vlm"
POINTERS = ["in_norm", "post_norm", "q_norm", "k_norm", "qkv_bias", "qkv", "out", "gate_up", "down"]
SIZES = ["num_layers", "hidden", "heads", "kv_heads", "head_dim", "inter", "vocab", "bf16"]


class Layer(ctypes.Structure):
    """struct Layer."""

    _fields_ = [(name, ctypes.c_void_p) for name in POINTERS]


class Model(ctypes.Structure):
    """struct Model."""

    _fields_ = [
        *((name, ctypes.c_int) for name in SIZES),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("layers", ctypes.POINTER(Layer)),
        ("final_norm", ctypes.c_void_p),
        ("head", ctypes.c_void_p),
    ]


class Batch(ctypes.Structure):
    """struct Batch."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ["rows", "need_rows", "max_len", "levels"]),
        *((name, ctypes.c_void_p) for name in ["x", "cos", "sin", "slot", "pos", "need", "k", "v"]),
        ("slot_stride", ctypes.c_size_t),
        ("layer_stride", ctypes.c_size_t),
        ("logits", ctypes.c_void_p),
        ("deepstack", ctypes.c_void_p),
    ]


def build() -> ctypes.CDLL:
    """Compile the four sources into a shared library."""
    library = Path(tempfile.mkdtemp()) / "decoder.so"
    sources = [HERE / name for name in ("decoder.c", "avx2.c", "avx512.c")]
    subprocess.run(["cc", "-O3", "-fPIC", "-shared", "-pthread", "-o", library, *sources], check=True)
    return ctypes.CDLL(str(library))


class NativeDecoder:
    """A Hugging Face text model's weights, packed; slots of `max_len` tokens."""

    def __init__(self, text: Any, head: torch.Tensor, threads: int, slots: int = 16, max_len: int = 1024) -> None:
        self.library = build()
        self.vector = self.library.setup(threads, 0)
        self.kept: list[torch.Tensor] = []
        config = text.config
        self.is_bf16 = head.dtype == torch.bfloat16
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.layers = (Layer * len(text.layers))(*map(self.layer, text.layers))
        self.model = Model(
            config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.num_key_value_heads, dim,
            config.intermediate_size, head.shape[0], int(self.is_bf16), config.rms_norm_eps, dim**-0.5, self.layers,
            self.vectors(text.norm.weight), self.packed(head),
        )  # fmt: skip
        self.keys = torch.empty(config.num_hidden_layers, slots, config.num_key_value_heads, max_len, dim)
        self.values = torch.empty_like(self.keys)
        self.frequencies = text.rotary_emb.inv_freq.float()
        self.embeddings = text.embed_tokens.weight.detach()

    def vectors(self, weight: torch.Tensor | None) -> int | None:
        """Address of a float32 copy."""
        if weight is None:
            return None
        self.kept.append(weight.detach().float().contiguous().clone())
        return self.kept[-1].data_ptr()

    def packed(self, weight: torch.Tensor, *, swiglu: bool = False) -> int:
        """Address of a copy in panels."""
        weight = weight.detach().contiguous()
        rows, columns = weight.shape
        panels = -(-rows // (2 * self.vector))
        out = torch.empty(panels * 2 * self.vector * columns, dtype=weight.dtype)
        self.library.pack(
            int(self.is_bf16), int(swiglu), ctypes.c_void_p(weight.data_ptr()), rows, columns,
            ctypes.c_void_p(out.data_ptr()),
        )  # fmt: skip
        self.kept.append(out)
        return out.data_ptr()

    def layer(self, layer: Any) -> Layer:
        """Pack one layer."""
        a, mlp = layer.self_attn, layer.mlp
        projections = [a.q_proj, a.k_proj, a.v_proj]
        bias = torch.cat([p.bias for p in projections]) if a.q_proj.bias is not None else None
        return Layer(
            self.vectors(layer.input_layernorm.weight),
            self.vectors(layer.post_attention_layernorm.weight),
            self.vectors(getattr(getattr(a, "q_norm", None), "weight", None)),
            self.vectors(getattr(getattr(a, "k_norm", None), "weight", None)),
            self.vectors(bias),
            self.packed(torch.cat([p.weight for p in projections])),
            self.packed(a.o_proj.weight),
            self.packed(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]), swiglu=True),
            self.packed(mlp.down_proj.weight),
        )

    def forward(self, ids: list[int], slots: list[int], positions: list[int], need: list[int]) -> torch.Tensor:
        """Packed tokens through all layers; logits of the rows in `need`."""
        x = self.embeddings[torch.tensor(ids)].float().contiguous()
        at = torch.tensor(positions, dtype=torch.int32)
        angle = at.float()[:, None] * self.frequencies
        cos, sin = angle.cos(), angle.sin()
        slot, rows = torch.tensor(slots, dtype=torch.int32), torch.tensor(need, dtype=torch.int32)
        logits = torch.empty(len(need), self.model.vocab)
        tensors = (x, cos, sin, slot, at, rows, self.keys, self.values)
        batch = Batch(
            len(ids), len(need), self.keys.shape[3], 0, *(t.data_ptr() for t in tensors), self.keys.stride(1),
            self.keys.stride(0), logits.data_ptr(), None,
        )  # fmt: skip
        self.library.forward(ctypes.byref(self.model), ctypes.byref(batch))
        return logits


def load(shape: str, dtype: torch.dtype) -> tuple[Any, Any, int]:
    """The model, its text part and its end-of-sequence token."""
    if shape == "tiny":
        model = AutoModelForImageTextToText.from_pretrained(TINY, dtype=dtype).eval()
        return model, model.model.language_model, 2
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=32000, hidden_size=768, intermediate_size=2304, num_hidden_layers=12, num_attention_heads=12,
        num_key_value_heads=4, head_dim=64, max_position_embeddings=4096, tie_word_embeddings=True, eos_token_id=2,
    )  # fmt: skip
    random_model = Qwen3ForCausalLM(config).to(dtype).eval()
    return random_model, random_model.model, 2


def main() -> None:
    """Compare and time at 1, 4 and 16 sequences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=("tiny", "120m"))
    parser.add_argument("dtype", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-reference", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, text, eos = load(args.shape, getattr(torch, args.dtype))
    native = NativeDecoder(text, model.lm_head.weight, args.threads)
    rng = random.Random(0)
    with torch.inference_mode():
        for batch in (1, 4, 16):
            prompts = [[rng.randint(10, 900) for _ in range(128)] for _ in range(batch)]

            def pick(logits: torch.Tensor) -> list[int]:
                logits[:, eos] = -1e9
                return logits.argmax(-1).tolist()

            ends = [128 * (b + 1) - 1 for b in range(batch)]
            slots = [b for b in range(batch) for _ in range(128)]
            packed = [token for prompt in prompts for token in prompt]
            outputs = [[t] for t in pick(native.forward(packed, slots, list(range(128)) * batch, ends))]
            walls = []
            for step in range(63):
                started = time.perf_counter()
                ids, every = [o[-1] for o in outputs], list(range(batch))
                tokens = pick(native.forward(ids, every, [128 + step] * batch, every))
                for output, token in zip(outputs, tokens, strict=True):
                    output.append(token)
                walls.append(time.perf_counter() - started)
            equal = "-"
            if not args.no_reference:
                ids_tensor = torch.tensor(prompts)
                reference = model.generate(
                    input_ids=ids_tensor, attention_mask=torch.ones_like(ids_tensor), max_new_tokens=64,
                    min_new_tokens=64, do_sample=False, pad_token_id=0,
                )[:, 128:].tolist()  # fmt: skip
                equal = f"{sum(map(list.__eq__, reference, outputs))}/{batch}"
            walls.sort()
            print(f"B={batch}: {walls[31] * 1e3:.3f} ms/step, {batch / walls[31]:.0f} tok/s, tokens equal {equal}")


if __name__ == "__main__":
    main()
