"""Qwen3-VL: interleaved M-RoPE, and deepstack rows that the first text layers add."""

from typing import Any, ClassVar

from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLForConditionalGeneration

from chiasm.engines.embedded.families.qwen_vl import QwenVL


class Qwen3VL(QwenVL):
    """The dense variants."""

    name: ClassVar[str] = "qwen3_vl"
    model_types: ClassVar[tuple[str, ...]] = ("qwen3_vl",)
    model_class: ClassVar[Any] = Qwen3VLForConditionalGeneration
    interleaved_frequencies: ClassVar[bool] = True
