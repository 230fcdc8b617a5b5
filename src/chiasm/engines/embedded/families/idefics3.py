"""Idefics3 and SmolVLM: tiles with row and column tokens between them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from tokenizers import Tokenizer
from transformers.models.idefics3.modeling_idefics3 import Idefics3ForConditionalGeneration
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMForConditionalGeneration

from chiasm.engines.embedded.families.base import LoadedModel
from chiasm.engines.embedded.families.pictures import PictureFamily, pixel_values
from chiasm.errors import EngineStartError
from chiasm.media.prepare.base import ImagePlan, ImagePreparer, PreparedImage
from chiasm.media.prepare.idefics3 import BORDER_TOKEN, OVERVIEW_NAME, tile_name
from chiasm.media.prepare.model_files import tokenizer_facts
from chiasm.media.prepare.registry import preparer_for

_IMAGE_TOKEN = "<image>"  # noqa: S105 - a token of the vocabulary
_SPLIT_SIZE = (1000, 1000)


class Idefics3(PictureFamily):
    """`Idefics3ForConditionalGeneration`."""

    name: ClassVar[str] = "idefics3"
    model_types: ClassVar[tuple[str, ...]] = ("idefics3",)
    model_class: ClassVar[Any] = Idefics3ForConditionalGeneration

    def __init__(self, directory: Path, config: Any) -> None:
        self._tokenizer = _read_tokenizer(directory)
        super().__init__(directory, config)
        plan = self.preparer.plan(*_SPLIT_SIZE)
        if len(self.expand(plan)) != plan.num_prompt_tokens:
            raise EngineStartError(
                f"the tokenizer of {directory.name} writes {len(self.expand(plan))} tokens for a picture of"
                f" {plan.num_prompt_tokens}",
                hint="tokenizer.json and preprocessor_config.json must be those of the original model",
            )

    def _make_preparer(self, directory: Path) -> ImagePreparer | None:
        return preparer_for(directory, lambda text: len(self._encode(text)))

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def expand(self, plan: ImagePlan) -> list[int]:
        """See `Family`."""
        rows, columns = plan.tiles
        is_split = rows * columns > 1
        lines = [
            "".join(BORDER_TOKEN + tile_name(row, column) + _IMAGE_TOKEN for column in range(columns)) + "\n"
            for row in range(rows if is_split else 0)
        ]
        overview = ("\n" if is_split else "") + BORDER_TOKEN + OVERVIEW_NAME + _IMAGE_TOKEN + BORDER_TOKEN
        num_tiles = rows * columns + 1 if is_split else 1
        per_tile = plan.num_embeddings // num_tiles
        image = self.image_token_id
        return [
            token for token in self._encode("".join(lines) + overview) for _ in range(per_tile if token == image else 1)
        ]

    def load(self, dtype: torch.dtype) -> LoadedModel:
        """See `Family`."""
        model = self._read(dtype)
        vision, text = model.model, model.model.text_model
        vision.text_model = None  # so that the text weights are not held twice
        return LoadedModel(text=text, lm_head=model.lm_head.weight, vision=vision)

    @torch.inference_mode()
    def encode(self, model: LoadedModel, images: Sequence[PreparedImage]) -> list[torch.Tensor]:
        """See `Family`."""
        vision: Any = model.vision
        # Not `get_image_features`, which drops tiles of zeros as padding.
        features = vision.vision_model(pixel_values=pixel_values(images, vision)).last_hidden_state
        rows = vision.connector(features).flatten(0, 1)
        return list(torch.split(rows, [image.plan.num_embeddings for image in images]))


class SmolVLM(Idefics3):
    """`SmolVLMForConditionalGeneration`, versions 1 and 2; still pictures only."""

    name: ClassVar[str] = "smolvlm"
    model_types: ClassVar[tuple[str, ...]] = ("smolvlm",)
    model_class: ClassVar[Any] = SmolVLMForConditionalGeneration


def _read_tokenizer(directory: Path) -> Tokenizer:
    tokenizer_facts(directory)  # says what is wrong with the file, which the library does not
    return Tokenizer.from_file(str(directory / "tokenizer.json"))
