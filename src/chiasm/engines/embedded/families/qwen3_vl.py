"""Qwen3-VL: interleaved M-RoPE, and deepstack rows that the first text layers add."""

from functools import cached_property
from typing import Any, ClassVar

from tokenizers import Tokenizer
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLForConditionalGeneration

from chiasm.engines.embedded.families.qwen_vl import QwenVL
from chiasm.media.prepare.base import ImagePlan


class Qwen3VL(QwenVL):
    """The dense variants."""

    name: ClassVar[str] = "qwen3_vl"
    model_types: ClassVar[tuple[str, ...]] = ("qwen3_vl",)
    model_class: ClassVar[Any] = Qwen3VLForConditionalGeneration
    interleaved_frequencies: ClassVar[bool] = True

    def expand(self, plan: ImagePlan) -> list[int]:
        """See `Family`. Each of a video's frames of patches stands between marks of its own, after its time."""
        if plan.kind == "image":
            return super().expand(plan)
        rows = [self.video_token_id] * (plan.num_embeddings // len(plan.grid_times_s))
        marked = [self._config.vision_start_token_id, *rows, self._config.vision_end_token_id]
        return [token for time_s in plan.grid_times_s for token in (*self._encode(f"<{time_s:.1f} seconds>"), *marked)]

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer.from_file(str(self._directory / "tokenizer.json"))

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids
