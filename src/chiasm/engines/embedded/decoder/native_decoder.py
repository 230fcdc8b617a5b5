"""The decoder in C: one call computes all layers (`chiasm/engines/embedded/native`).

Hidden states, keys and values are float32. Weights that are bfloat16, or float32 that all fit into bfloat16 (as those
of a checkpoint stored in bfloat16 do), are kept as such and widened when used: half the memory to read, for the same
result bit for bit. A token's result does not depend on what else is in the step, on how its prompt was cut into chunks,
or on the number of threads, bit for bit.
"""

import importlib
import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from chiasm.engines.embedded.decoder.base import DeepstackRows
from chiasm.engines.embedded.decoder.low_rank import PARTS, AdaptedRows, AdapterLayers, ArrangedAdapter
from chiasm.engines.embedded.decoder.rotary import Rotary, RotaryTables
from chiasm.engines.embedded.decoder.weights import LayerWeights, attention_shape, layer_weights
from chiasm.engines.embedded.families.base import LoadedModel
from chiasm.scheduling.scheduler import Chunk

ALONE_PRODUCTS = 8e6
"""Multiplications of a step that one core does in about a millisecond. Waking others for less gains nothing, and costs
where the cores have more to do."""
MOST_THREADS = 256
"""What the C code takes."""
WEIGHT_DTYPES = (torch.float32, torch.bfloat16)
"""What matrices may be kept in."""


def _load() -> ModuleType | None:
    try:
        return importlib.import_module("chiasm.engines.embedded.decoder._native")
    except ImportError:  # no compiler at install time
        return None


library = _load()
"""The extension module; None where it was not built."""


def threads_for(asked: int) -> int:
    """As many threads as are asked for, 0 for one of each core, but not more than the C code takes."""
    return min(MOST_THREADS, asked or os.cpu_count() or 1)


def kernels_for(head_dim: int, name: str = "") -> str | None:
    """The instruction set that would be used (`name`: that or none); None if not built, or not for this CPU or size."""
    return None if library is None else library.kernels_for(head_dim, name) or None


def native_problem(model: LoadedModel) -> str | None:
    """Why `NativeDecoder` cannot take a model here; None when it can."""
    if library is None:
        return "it was not built when Chiasm was installed"
    head_dim, dtype = attention_shape(model.text).head_dim, model.lm_head.dtype
    if kernels_for(head_dim) is None:
        return f"it has no code for attention heads of {head_dim}"
    return None if dtype in WEIGHT_DTYPES else f"it has no code for weights of type {dtype}"


class NativeDecoder:
    """See `Decoder`. Not thread-safe: a call from a second thread raises `RuntimeError`."""

    def __init__(
        self,
        model: LoadedModel,
        frequency_axes: NDArray[np.int64] | None,
        *,
        threads: int,
        kernels: str = "",
        alone_products: float = ALONE_PRODUCTS,
    ) -> None:
        """Copy the weights of `model`. Raises `ValueError` and `MemoryError`.

        Args:
            model: Left as it is.
            frequency_axes: `Family.frequency_axes`.
            threads: The caller's included.
            kernels: An instruction set, instead of the best.
            alone_products: Steps of fewer multiplications are computed on the caller's thread.
        """
        assert library is not None, "callers ask `native_problem` first"
        text: Any = model.text
        self.num_layers: int = text.config.num_hidden_layers
        self.hidden_size: int = text.config.hidden_size
        self.shape = attention_shape(text)
        self.dtype = torch.float32
        self._embeddings: torch.Tensor = text.embed_tokens.weight.detach()
        self._tables = RotaryTables(text, frequency_axes, torch.float32)
        self._vocab_size = len(model.lm_head)
        self._stored = torch.bfloat16 if _fit_bfloat16(text.layers, model.lm_head) else torch.float32
        self._native = library.NativeDecoder(
            kernels,
            threads,
            self.num_layers,
            self.hidden_size,
            self.shape.heads,
            self.shape.kv_heads,
            self.shape.head_dim,
            text.config.intermediate_size,
            self._vocab_size,
            self._stored is torch.bfloat16,
            self.shape.eps,
            self.shape.scale,
            alone_products,
        )
        self.name = f"native ({self._native.kernels})"
        num_head_bytes = self._set_weights(text, model.lm_head.detach())
        self.weight_bytes = self._embeddings.nbytes + _kept_bytes(text.layers, self._stored) + num_head_bytes

    def rotary(self, positions: NDArray[np.int64]) -> Rotary:
        """See `Decoder`."""
        return self._tables.at(positions)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """See `Decoder`."""
        return functional.embedding(token_ids, self._embeddings).float()

    def forward(  # noqa: PLR0913 - all that a step is
        self,
        x: torch.Tensor,
        rotary: Rotary,
        kv: torch.Tensor,
        contexts: NDArray[np.int64],
        chunks: Sequence[Chunk],
        deepstack: DeepstackRows | None,
        wanted: torch.Tensor | None = None,
        adapted: Sequence[AdaptedRows] = (),
    ) -> torch.Tensor:
        """See `Decoder`; computes in place. Raises `ValueError` for what does not fit, and `MemoryError`."""
        rows, shape = len(x), self.shape
        check("x", x, (rows, self.hidden_size))
        check("cos", rotary.cos, (rows, shape.head_dim))
        check("sin", rotary.sin, (rows, shape.head_dim))
        check("kv", kv, (self.num_layers, kv.shape[1], 2, shape.kv_heads, kv.shape[4], shape.head_dim))
        runs = _runs(contexts, chunks)
        deep_rows, levels = _deepstack(deepstack, self.hidden_size)
        if wanted is not None and len(levels) >= self.num_layers:
            return self.forward(x, rotary, kv, contexts, chunks, deepstack, adapted=adapted)[wanted]
        kept = x if wanted is None else torch.empty(len(wanted), self.hidden_size)
        self._native.step(
            rows,
            x.data_ptr(),
            rotary.cos.data_ptr(),
            rotary.sin.data_ptr(),
            kv.data_ptr(),
            kv.shape[1],
            kv.shape[4],
            runs.ctypes.data,
            len(runs),
            deep_rows.data_ptr(),
            levels.data_ptr(),
            len(deep_rows),
            len(levels),
            address(wanted),
            -1 if wanted is None else len(wanted),
            kept.data_ptr(),
            tuple((rows.adapter, rows.first, rows.count) for rows in adapted),
        )
        return kept

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `Decoder`."""
        hidden = hidden.contiguous()
        check("hidden", hidden, (len(hidden), self.hidden_size))
        out = torch.empty(len(hidden), self._vocab_size)
        self._native.logits(len(hidden), hidden.data_ptr(), out.data_ptr())
        return out

    def arrange(self, layers: AdapterLayers) -> ArrangedAdapter:
        """See `Decoder`."""
        adapter = self._native.adapter()
        for number, layer in enumerate(layers):
            for part, one in layer.items():
                shrink, expand = one.shrink.float().contiguous(), one.expand.float().contiguous()
                adapter.set(number, PARTS.index(part), len(shrink), address(shrink), address(expand))
        return cast("ArrangedAdapter", adapter)

    def close(self) -> None:
        """See `Decoder`."""
        self._native.close()

    def _set_weights(self, text: Any, lm_head: torch.Tensor) -> int:
        """Copy all of them; returns the bytes of the head."""
        for number, layer in enumerate(layer_weights(text)):
            self._set_layer(number, layer)
        norm, head = floats(text.norm.weight), lm_head.to(self._stored).contiguous()
        self._native.set_head(address(norm), address(head))
        return head.nbytes

    def _set_layer(self, number: int, layer: LayerWeights) -> None:
        parts = (layer.qkv, layer.out, layer.gate_up, layer.down)
        norms = [floats(norm) for norm in (layer.input_norm, layer.post_norm, layer.q_norm, layer.k_norm)]
        weights = [part.weight.to(self._stored).contiguous() for part in parts]
        biases = [floats(part.bias) for part in parts]
        self._native.set_layer(number, *map(address, (*norms, *weights, *biases)))


def _fit_bfloat16(layers: torch.nn.Module, head: torch.Tensor) -> bool:
    """Whether every weight matrix survives the way to bfloat16 and back unchanged."""
    matrices = (weight.detach() for weight in [*layers.parameters(), head] if weight.ndim > 1)
    return all(torch.equal(matrix, matrix.bfloat16().to(matrix.dtype)) for matrix in matrices)


def _kept_bytes(layers: torch.nn.Module, stored: torch.dtype) -> int:
    """What the extension's copy of the layers takes: matrices as they are stored, all else as float32."""
    weights = list(layers.parameters())
    return sum(one.numel() * (stored if one.ndim > 1 else torch.float32).itemsize for one in weights)


def floats(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """As contiguous float32."""
    return None if tensor is None else tensor.detach().float().contiguous()


def address(tensor: torch.Tensor | None) -> int:
    """For the extension; the caller keeps the tensor alive."""
    return 0 if tensor is None else tensor.data_ptr()


def check(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Raise `ValueError` unless a tensor is what the extension reads."""
    if tensor.shape != shape or tensor.dtype is not torch.float32 or not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous float32 {list(shape)}, not {tensor.dtype} {list(tensor.shape)}")


def _runs(contexts: NDArray[np.int64], chunks: Sequence[Chunk]) -> NDArray[np.int64]:
    """[sequences, 3]: slot, first token, tokens."""
    n = len(contexts)
    runs = np.ones((n + len(chunks), 3), np.int64)
    runs[:n, 0] = np.arange(n)
    runs[:n, 1] = contexts
    for number, chunk in enumerate(chunks, n):
        runs[number] = chunk.slot, chunk.start, chunk.num_tokens
    return runs


_NO_ROWS = torch.zeros(0, dtype=torch.int64)
_NO_LEVELS = torch.zeros(0)


def _deepstack(deepstack: DeepstackRows | None, hidden_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    if deepstack is None:
        return _NO_ROWS, _NO_LEVELS
    rows, levels = deepstack.rows.long().contiguous(), deepstack.levels.float().contiguous()
    check("deepstack", levels, (len(levels), len(rows), hidden_size))
    return rows, levels
