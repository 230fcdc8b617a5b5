"""Chiasm: serve vision-language models with the media encoder split from the language model."""

from typing import TYPE_CHECKING, Any

__all__ = ["LLM", "__version__"]
__version__ = "0.1.0"

if TYPE_CHECKING:
    from chiasm.llm import LLM


def __getattr__(name: str) -> Any:
    if name == "LLM":  # lazy: the control plane must import without torch
        from chiasm.llm import LLM

        return LLM
    raise AttributeError(f"module 'chiasm' has no attribute {name!r}")
