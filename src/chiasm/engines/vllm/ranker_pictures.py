"""Pictures of the image ranker on their way through vLLM: prepared arrays in, one placeholder token each.

What decodes and prepares is Chiasm's media room, before vLLM gets anything; other pictures are refused here.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import BatchFeature
from vllm.exceptions import VLLMValidationError
from vllm.inputs import mm_input
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange
from vllm.multimodal.parse import ImageProcessorItems, MultiModalDataParser
from vllm.multimodal.processing import BaseDummyInputsBuilder, BaseMultiModalProcessor, BaseProcessingInfo

from chiasm.pooling.ranker_config import read_ranker_config

_FIELDS = {"pixel_values": MultiModalFieldConfig.batched("image")}


class PreparedPictures(MultiModalDataParser):  # type: ignore[misc]
    """Takes what the media room has prepared, of the one shape that the model reads, and nothing else."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._shape = (3, size, size)

    def _parse_image_data(self, data: Any) -> ImageProcessorItems:
        if isinstance(data, torch.Tensor) and data.shape == self._shape and data.dtype == torch.float32:
            return ImageProcessorItems([data])
        raise VLLMValidationError(
            "This model takes pictures through its IO processor only: send 'data' to /pooling", parameter="image"
        )


class RankerPictureInfo(BaseProcessingInfo):  # type: ignore[misc]
    """What vLLM wants to know about the model's pictures."""

    @cached_property
    def picture_size(self) -> int:
        """Width and height of a prepared picture."""
        return int(self.get_hf_config().vision_config.image_size)

    @cached_property
    def marker_id(self) -> int | None:
        """The token that stands for the picture."""
        directory = Path(self.ctx.model_config.model)
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        found: int | None = tokenizer.token_to_id(read_ranker_config(directory).marker_token)
        return found

    def get_data_parser(self) -> PreparedPictures:
        """See vLLM."""
        return PreparedPictures(self.picture_size)

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """See vLLM."""
        return {"image": 1}

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
        """See vLLM."""
        return {"image": 1}


class RankerDummyPictures(BaseDummyInputsBuilder[RankerPictureInfo]):  # type: ignore[misc]
    """What vLLM tries out memory with."""

    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        """See vLLM."""
        marker: str = read_ranker_config(Path(self.info.ctx.model_config.model)).marker_token
        return marker * mm_counts.get("image", 0)

    def get_dummy_mm_data(self, seq_len: int, mm_counts: Mapping[str, int], mm_options: Any) -> Mapping[str, Any]:
        """See vLLM."""
        size = self.info.picture_size
        return {"image": torch.zeros(3, size, size)} if mm_counts.get("image", 0) else {}


class RankerPictureProcessor(BaseMultiModalProcessor[RankerPictureInfo]):  # type: ignore[misc]
    """Hands arrays on as they are, and the token list itself, which leads back to its request."""

    requires_tokenizer = False

    def apply(self, inputs: Any, timing_ctx: Any) -> Any:
        """See vLLM."""
        del timing_ctx  # nothing here takes time
        if self.info.marker_id not in inputs.prompt:
            raise VLLMValidationError(
                "A picture stands for no token of the prompt: leave out truncate_prompt_tokens", parameter="image"
            )
        pixels = torch.stack(inputs.mm_data_items["image"].get_all())
        algorithm = self.info.ctx.get_mm_config().mm_hasher_algorithm
        place = PlaceholderRange(offset=inputs.prompt.index(self.info.marker_id), length=1)
        return mm_input(
            prompt_token_ids=inputs.prompt,
            mm_kwargs=MultiModalKwargsItems.from_hf_inputs(BatchFeature({"pixel_values": pixels}), _FIELDS),
            mm_hashes=inputs.get_mm_hashes(self.info.model_id, algorithm),
            mm_placeholders={"image": [place]},
        )

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Any) -> Mapping[str, Any]:
        return _FIELDS

    def _get_prompt_updates(self, mm_items: Any, hf_processor_mm_kwargs: Any, out_mm_kwargs: Any) -> list[Any]:
        return []
