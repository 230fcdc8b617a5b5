"""Qwen2-VL: chunked M-RoPE, full attention in the vision tower."""

from typing import Any, ClassVar

from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLForConditionalGeneration

from chiasm.engines.embedded.families.qwen_vl import QwenVL


class Qwen2VL(QwenVL):
    """All sizes."""

    name: ClassVar[str] = "qwen2_vl"
    model_types: ClassVar[tuple[str, ...]] = ("qwen2_vl",)
    model_class: ClassVar[Any] = Qwen2VLForConditionalGeneration
    interleaved_frequencies: ClassVar[bool] = False
