"""Time one decode step of a Llama-shaped model written in several ways, and check that they agree.

Run: python benchmarks/micro/decode_step.py --shape tiny --threads 1 --variants linear,packed,fused,traced
Prints the fastest and the median step and the CPU time of a step; on a busy machine only the fastest means something.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

SHAPES = {"tiny": (4, 256, 640, 4, 2, 64, 1024), "120m": (12, 768, 2304, 12, 4, 64, 32000)}
MKLDNN = torch.ops.mkldnn
Step = Callable[[torch.Tensor, int], torch.Tensor]


@dataclass
class Layer:
    """Weights of one decoder layer; projections that share an input are one matrix."""

    in_norm: torch.Tensor
    qkv: torch.Tensor
    head_norm: torch.Tensor  # [heads + kv_heads, 1, head_dim]
    out: torch.Tensor
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


class Model:
    """Random weights and slot caches [slots, kv_heads, length, head_dim]."""

    def __init__(self, shape: str, dtype: torch.dtype, batch: int, context: int) -> None:
        torch.manual_seed(0)
        num_layers, self.hidden, inner, self.heads, self.kv_heads, self.dim, vocab = SHAPES[shape]

        def matrix(rows: int, columns: int) -> torch.Tensor:
            return (torch.randn(rows, columns) * columns**-0.5).to(dtype)

        width = (self.heads + 2 * self.kv_heads) * self.dim
        self.layers = []
        for _ in range(num_layers):
            gate, up = matrix(inner, self.hidden), matrix(inner, self.hidden)
            self.layers.append(
                Layer(
                    in_norm=torch.ones(self.hidden, dtype=dtype),
                    qkv=matrix(width, self.hidden),
                    head_norm=torch.ones(self.heads + self.kv_heads, 1, self.dim, dtype=dtype),
                    out=matrix(self.hidden, self.heads * self.dim),
                    post_norm=torch.ones(self.hidden, dtype=dtype),
                    gate_up=torch.cat((gate, up)),
                    gate=gate,
                    up=up,
                    down=matrix(self.hidden, inner),
                )
            )
        self.norm = torch.ones(self.hidden, dtype=dtype)
        self.head = matrix(vocab, self.hidden)
        self.keys = torch.randn(num_layers, batch, self.kv_heads, context + 8, self.dim).to(dtype)
        self.values = torch.randn_like(self.keys)
        self.frequencies = 1e5 ** (-torch.arange(0, self.dim, 2).float() / self.dim)
        self.scale = self.dim**-0.5

    def num_bytes(self) -> int:
        """Weights that one step reads."""
        tensors = [t for layer in self.layers for t in (layer.qkv, layer.out, layer.gate_up, layer.down)]
        return sum(t.numel() * t.element_size() for t in [*tensors, self.head])

    def angles(self, position: int, rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        angle = (position * self.frequencies).expand(rows, -1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((cos, cos), -1)[None].to(dtype), torch.cat((-sin, sin), -1)[None].to(dtype)

    def attend(self, index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: int) -> torch.Tensor:
        """q [heads, rows, dim], k and v [kv_heads, rows, dim] -> [rows, heads * dim]."""
        rows, group = q.shape[1], self.heads // self.kv_heads
        keys, values = self.keys[index], self.values[index]
        keys[:rows, :, at] = k.transpose(0, 1)
        values[:rows, :, at] = v.transpose(0, 1)
        q = q.reshape(self.kv_heads, group, rows, self.dim).permute(2, 0, 1, 3)
        out = F.scaled_dot_product_attention(q, keys[:rows, :, : at + 1], values[:rows, :, : at + 1], scale=self.scale)
        return out.reshape(rows, self.heads * self.dim)


def straightforward(model: Model, linear: Callable[..., torch.Tensor], pack: Callable[[torch.Tensor], object]) -> Step:
    """Fused qkv and gate-up, otherwise the textbook layer."""
    packed = [tuple(map(pack, (w.qkv, w.out, w.gate_up, w.down))) for w in model.layers]
    head, hidden, heads, dim = pack(model.head), model.hidden, model.heads, model.dim
    both = heads + model.kv_heads

    def step(x: torch.Tensor, at: int) -> torch.Tensor:
        rows = x.shape[0]
        cos, sin = model.angles(at, rows, x.dtype)
        for i, (w, (qkv, out, gate_up, down)) in enumerate(zip(model.layers, packed, strict=True)):
            y = linear(F.rms_norm(x, (hidden,), w.in_norm, 1e-6), qkv).view(rows, -1, dim).transpose(0, 1)
            q = F.rms_norm(y[:heads], (dim,), w.head_norm[0, 0], 1e-6)
            k = F.rms_norm(y[heads:both], (dim,), w.head_norm[heads, 0], 1e-6)
            qk = torch.cat((q, k))
            qk = qk * cos + torch.cat((qk[..., dim // 2 :], qk[..., : dim // 2]), -1) * sin
            x = x + linear(model.attend(i, qk[:heads], qk[heads:], y[both:], at), out)
            gate, up = linear(F.rms_norm(x, (hidden,), w.post_norm, 1e-6), gate_up).chunk(2, -1)
            x = x + linear(F.silu(gate) * up, down)
        return linear(F.rms_norm(x, (hidden,), model.norm, 1e-6), head)

    return step


def fused(model: Model) -> Step:
    """oneDNN-packed weights with activation, product and residual as post-ops; as few dispatches as possible."""

    def pack(w: torch.Tensor) -> torch.Tensor:
        return MKLDNN._reorder_linear_weight(w.contiguous(), None)

    packed = [tuple(map(pack, (w.qkv, w.out, w.gate, w.up, w.down))) for w in model.layers]
    head, hidden, heads, dim = pack(model.head), model.hidden, model.heads, model.dim
    both = heads + model.kv_heads
    linear = MKLDNN._linear_pointwise

    def step(x: torch.Tensor, at: int) -> torch.Tensor:
        rows = x.shape[0]
        cos, sin = model.angles(at, rows, x.dtype)
        for i, (w, (qkv, out, gate, up, down)) in enumerate(zip(model.layers, packed, strict=True)):
            y = linear(F.rms_norm(x, (hidden,), w.in_norm, 1e-6), qkv, None, "none", [], "").view(rows, -1, dim)
            y = y.transpose(0, 1)
            qk = F.rms_norm(y[:both], (dim,), None, 1e-6).mul_(w.head_norm)
            qk = torch.addcmul(qk * cos, qk.roll(dim // 2, -1), sin)
            x = linear.binary(model.attend(i, qk[:heads], qk[heads:], y[both:], at), x, out, None, "add")
            z = F.rms_norm(x, (hidden,), w.post_norm, 1e-6)
            z = linear.binary(z, linear(z, gate, None, "swish", [], ""), up, None, "mul")
            x = linear.binary(z, x, down, None, "add")
        return linear(F.rms_norm(x, (hidden,), model.norm, 1e-6), head, None, "none", [], "")

    return step


def halves(model: Model, wrap: Callable[..., Callable[..., torch.Tensor]]) -> Step:
    """The two attention-free halves of a layer as functions handed to `wrap` (trace or compile)."""
    hidden, heads, dim = model.hidden, model.heads, model.dim
    both = heads + model.kv_heads

    def before(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, norm: torch.Tensor, qkv: torch.Tensor,
               head_norm: torch.Tensor) -> torch.Tensor:  # fmt: skip
        y = F.linear(F.rms_norm(x, (hidden,), norm, 1e-6), qkv).view(x.shape[0], -1, dim).transpose(0, 1)
        qk = F.rms_norm(y[:both], (dim,), None, 1e-6) * head_norm
        qk = qk * cos + torch.cat((qk[..., dim // 2 :], qk[..., : dim // 2]), -1) * sin
        return torch.cat((qk, y[both:]))

    def after(a: torch.Tensor, x: torch.Tensor, out: torch.Tensor, norm: torch.Tensor, gate_up: torch.Tensor,
              down: torch.Tensor) -> torch.Tensor:  # fmt: skip
        x = x + F.linear(a, out)
        gate, up = F.linear(F.rms_norm(x, (hidden,), norm, 1e-6), gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, down)

    w, x = model.layers[0], torch.zeros(4, hidden, dtype=model.norm.dtype)
    cos, sin = model.angles(1, 4, x.dtype)
    attended = torch.zeros(4, heads * dim, dtype=x.dtype)
    first = wrap(before, (x, cos, sin, w.in_norm, w.qkv, w.head_norm))
    second = wrap(after, (attended, x, w.out, w.post_norm, w.gate_up, w.down))

    def step(x: torch.Tensor, at: int) -> torch.Tensor:
        cos, sin = model.angles(at, x.shape[0], x.dtype)
        for i, w in enumerate(model.layers):
            y = first(x, cos, sin, w.in_norm, w.qkv, w.head_norm)
            a = model.attend(i, y[:heads], y[heads:both], y[both:], at)
            x = second(a, x, w.out, w.post_norm, w.gate_up, w.down)
        return F.linear(F.rms_norm(x, (hidden,), model.norm, 1e-6), model.head)

    return step


def build(name: str, model: Model) -> Step:
    """The decode step called `name`."""
    if name == "linear":
        return straightforward(model, F.linear, lambda w: w)
    if name == "packed":
        return straightforward(
            model,
            lambda x, w: MKLDNN._linear_pointwise(x, w, None, "none", [], ""),
            lambda w: MKLDNN._reorder_linear_weight(w.contiguous(), None),
        )
    if name == "fused":
        return fused(model)
    if name == "traced":
        return halves(model, lambda f, example: torch.jit.trace(f, example, check_trace=False))
    if name == "compiled":
        return halves(model, lambda f, _: torch.compile(f, dynamic=True))
    raise SystemExit(f"unknown variant {name!r}; known: linear, packed, fused, traced, compiled")


def measure(step: Step, x: torch.Tensor, context: int, num_steps: int) -> dict[str, float]:
    """Wall time (fastest, median) and CPU time per step, and the first call's."""
    started = time.perf_counter()
    step(x, context)
    first_s = time.perf_counter() - started
    for _ in range(5):
        step(x, context)
    walls, cpu = [], time.process_time()
    for _ in range(num_steps):
        started = time.perf_counter()
        step(x, context)
        walls.append(time.perf_counter() - started)
    cpu = time.process_time() - cpu
    walls.sort()
    return {
        "first_call_ms": first_s * 1e3,
        "fastest_ms": walls[0] * 1e3,
        "median_ms": walls[num_steps // 2] * 1e3,
        "cpu_ms": cpu / num_steps * 1e3,
    }


def main() -> None:
    """Measure the variants named on the command line and print one JSON line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=160)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--variants", default="linear,packed,fused,traced")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dtype = getattr(torch, args.dtype)
    with torch.inference_mode():
        for batch in map(int, args.batches.split(",")):
            model = Model(args.shape, dtype, batch, args.context)
            x = torch.randn(batch, model.hidden).to(dtype)
            reference = build("linear", model)(x, args.context)
            for name in args.variants.split(","):
                step = build(name, model)
                error = (step(x, args.context) - reference).abs().max().item()
                row = {"shape": args.shape, "dtype": args.dtype, "threads": args.threads, "batch": batch}
                row |= {"variant": name, "max_error": error, "weights_mb": model.num_bytes() / 1e6}
                print(json.dumps(row | measure(step, x, args.context, args.steps)), flush=True)


if __name__ == "__main__":
    main()
