"""Which text models the engine's decoder computes: Llama-shaped, full attention, positions known in advance."""

from typing import Any

from chiasm.errors import UnsupportedModelError

TEXT_MODEL_TYPES = frozenset(
    {"llama", "mistral", "qwen2", "qwen3", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text"}
)
STATIC_ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary frequencies that do not depend on the length of the sequence."""


def require_llama_shaped(config: Any) -> None:
    """Check a transformers text configuration. Raises `UnsupportedModelError` naming what the decoder lacks."""
    _require(config.model_type in TEXT_MODEL_TYPES, f"the text model {config.model_type!r}")
    _require(config.hidden_act == "silu", f"the activation {config.hidden_act!r}")
    rope = config.rope_parameters or {}
    rope_type = rope.get("rope_type", "default")
    _require(rope_type in STATIC_ROPE_TYPES, f"the rotary embedding {rope_type!r}")
    _require(rope.get("partial_rotary_factor", 1.0) == 1.0, "a partial rotary embedding")
    window = sliding_window(config)
    _require(
        window is None or window >= config.max_position_embeddings,
        f"a sliding window of {window} tokens in a context of {config.max_position_embeddings}",
    )


def sliding_window(config: Any) -> int | None:
    """Tokens that the narrowest layer looks back; None when all layers see everything."""
    window: int | None = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None)
    return window if layer_types is None or "sliding_attention" in layer_types else None


def _require(is_supported: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not is_supported:
        raise UnsupportedModelError(
            f"{what} is not supported by the embedded engine",
            hint="serve it by vLLM: chiasm serve --engine vllm --topology agg",
        )
