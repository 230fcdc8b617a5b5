"""Text encoders of BERT's kind in C: all layers of a packed batch in one call.

Rows pass through all that lies between two layers' attention while they are in the cache, nothing is filled up, and
where a head looks at one row of a text, the last layer computes only that. A text's numbers do not depend on what else
is in the batch, on the number of threads, or on which rows are wanted, bit for bit.
"""

from collections.abc import Sequence
from typing import Any

import torch

from chiasm.engines.embedded.decoder import native_decoder
from chiasm.engines.embedded.decoder.native_decoder import ALONE_PRODUCTS, address, floats
from chiasm.engines.embedded.decoder.weights import stacked
from chiasm.engines.pooling.batch import PackedBatch

_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
_MODEL_TYPES = ("bert", "roberta", "xlm-roberta", "camembert")


def text_problem(backbone: Any, dtype: torch.dtype) -> str | None:
    """Why `NativeTextEncoder` cannot take a Hugging Face model here; None when it can."""
    config = backbone.config
    if native_decoder.library is None:
        return "it was not built when Chiasm was installed"
    if config.model_type not in _MODEL_TYPES:
        return f"it has no code for {config.model_type}"
    if getattr(config, "is_decoder", False):
        return "it has no code for tokens that see only those before them"
    if config.hidden_act not in _ACTIVATIONS:
        return f"it has no code for the activation {config.hidden_act}"
    head_dim = config.hidden_size // config.num_attention_heads
    if native_decoder.kernels_for(head_dim) is None:
        return f"it has no code for attention heads of {head_dim}"
    return None if dtype == torch.float32 else f"torch is faster with weights of type {dtype}"


class NativeTextEncoder:
    """Owns its weights and threads. Not thread-safe: a call from a second thread raises `RuntimeError`."""

    def __init__(
        self,
        backbone: Any,
        *,
        threads: int,
        first_position: int = 0,
        kernels: str = "",
        alone_products: float = ALONE_PRODUCTS,
    ) -> None:
        """Copy the layers' weights and keep the tables. Raises `ValueError` and `MemoryError`.

        Args:
            backbone: A model that `text_problem` has nothing against; its layers are not needed afterwards.
            threads: The caller's included.
            first_position: What position 0 of a text is called by the model.
            kernels: An instruction set, instead of the best.
            alone_products: Batches of fewer multiplications are computed on the caller's thread.
        """
        assert native_decoder.library is not None, "callers ask `text_problem` first"
        config, embeddings = backbone.config, backbone.embeddings
        self._width = int(config.hidden_size)
        self._first_position = first_position
        head_dim = self._width // int(config.num_attention_heads)
        types = getattr(embeddings, "token_type_embeddings", None)
        self._tables = [
            None if table is None else table.weight.detach().contiguous()
            for table in (embeddings.word_embeddings, embeddings.position_embeddings, types)
        ]
        self._num_types = 0 if types is None else types.num_embeddings
        self._native = native_decoder.library.NativeTextEncoder(
            kernels,
            threads,
            len(backbone.encoder.layer),
            self._width,
            int(config.num_attention_heads),
            head_dim,
            int(config.intermediate_size),
            *(0 if table is None else len(table) for table in self._tables),
            _ACTIVATIONS[config.hidden_act],
            float(config.layer_norm_eps),
            head_dim**-0.5,
            alone_products,
        )
        self.name = f"native ({self._native.kernels})"
        self.num_bytes = sum(one.numel() * one.itemsize for one in backbone.parameters())
        self._set_weights(backbone)

    def encode(self, batch: PackedBatch, kept: Sequence[int] | None = None) -> torch.Tensor:
        """[tokens, hidden_size] after the last layer, or [kept, hidden_size]: of these rows, in ascending order."""
        rows = batch.ends[-1]
        ids, positions = batch.ids[:rows].contiguous(), batch.positions[:rows] + self._first_position
        told = batch.type_ids if self._num_types > 1 else None
        types = torch.zeros_like(ids) if told is None else told[:rows].contiguous()
        lengths = torch.tensor(batch.lengths)
        wanted = None if kept is None else torch.tensor(kept, dtype=torch.int64)
        out = torch.empty(rows if wanted is None else len(wanted), self._width)
        self._native.encode(
            rows,
            *map(address, (ids, positions, types, lengths)),
            len(lengths),
            address(wanted),
            -1 if wanted is None else len(wanted),
            out.data_ptr(),
        )
        return out

    def close(self) -> None:
        """Give back threads and memory; nothing may be called afterwards. Harmless when repeated."""
        self._native.close()

    def _set_weights(self, backbone: Any) -> None:
        norm = backbone.embeddings.LayerNorm
        kept = [*self._tables, floats(norm.weight), floats(norm.bias)]
        self._native.set_tables(*map(address, kept))
        for number, layer in enumerate(backbone.encoder.layer):
            own, after, last = layer.attention.self, layer.attention.output, layer.output
            parts = [
                stacked(own.query, own.key, own.value),
                *map(stacked, (after.dense, layer.intermediate.dense, last.dense)),
            ]
            norms = [tensor for one in (after.LayerNorm, last.LayerNorm) for tensor in (one.weight, one.bias)]
            kept = [*(floats(one.weight) for one in parts), *(floats(one.bias) for one in parts), *map(floats, norms)]
            self._native.set_layer(number, *map(address, kept))
