"""Qwen2.5-VL: chunked M-RoPE, windowed attention in the vision tower."""

from typing import Any, ClassVar

from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLForConditionalGeneration

from chiasm.engines.embedded.families.qwen_vl import QwenVL


class Qwen25VL(QwenVL):
    """All sizes."""

    name: ClassVar[str] = "qwen2_5_vl"
    model_types: ClassVar[tuple[str, ...]] = ("qwen2_5_vl",)
    model_class: ClassVar[Any] = Qwen2_5_VLForConditionalGeneration
    interleaved_frequencies: ClassVar[bool] = False
