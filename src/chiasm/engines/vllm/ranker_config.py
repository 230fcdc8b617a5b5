"""The image ranker's `config.json` in the form in which transformers, and with it vLLM, hold configurations."""

from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from chiasm.pooling.ranker_config import RANKER_TYPE

ARCHITECTURE = "ChiasmImageRanker"


class ImageRankerConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """Text and vision as configurations of their own; the architecture's name where the file has none."""

    model_type = RANKER_TYPE

    def __init__(
        self,
        text_config: Mapping[str, Any] | None = None,
        vision_config: Mapping[str, Any] | None = None,
        adapter_config: Mapping[str, Any] | None = None,
        marker_token: str = "",
        **others: Any,
    ) -> None:
        self.text_config = _part(text_config)
        self.vision_config = _part(vision_config)
        self.adapter_config = dict(adapter_config or {})
        self.marker_token = marker_token
        super().__init__(**(others | {"architectures": others.get("architectures") or [ARCHITECTURE]}))

    def get_text_config(self, *_: Any, **__: Any) -> PreTrainedConfig:
        """What vLLM asks for the sizes of sequences."""
        return self.text_config


def register() -> None:
    """Let transformers find it by the model type."""
    AutoConfig.register(RANKER_TYPE, ImageRankerConfig, exist_ok=True)


def _part(written: Mapping[str, Any] | None) -> PreTrainedConfig:
    fields = dict(written or {})
    kind = fields.pop("model_type", None)
    part: PreTrainedConfig = AutoConfig.for_model(kind, **fields) if kind else PreTrainedConfig()
    return part
