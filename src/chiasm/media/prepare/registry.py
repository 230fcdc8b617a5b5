"""Pick the preparer of a model directory from its JSON files alone; neither torch nor transformers is imported."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from chiasm.errors import UnsupportedModelError
from chiasm.media.prepare.base import ImagePreparer
from chiasm.media.prepare.clip import ClipPreparer, LlavaPreparer, SiglipPreparer
from chiasm.media.prepare.idefics3 import CountTokens, Idefics3Preparer
from chiasm.media.prepare.llava_onevision import LlavaOnevisionPreparer
from chiasm.media.prepare.model_files import read_json
from chiasm.media.prepare.qwen2_vl import Qwen2VLPreparer


class _Build(Protocol):
    def __call__(self, directory: Path, processor: Mapping[str, Any], model: Mapping[str, Any]) -> ImagePreparer: ...


_PREPARERS: dict[str, _Build] = {
    "Qwen2VLImageProcessor": Qwen2VLPreparer,
    "Qwen2_5_VLImageProcessor": Qwen2VLPreparer,
    "CLIPImageProcessor": ClipPreparer,
    "SiglipImageProcessor": SiglipPreparer,
    "LlavaImageProcessor": LlavaPreparer,
    "LlavaOnevisionImageProcessor": LlavaOnevisionPreparer,
}


_TILED = ("Idefics3ImageProcessor", "SmolVLMImageProcessor")


def preparer_for(directory: Path, count_tokens: CountTokens | None = None) -> ImagePreparer | None:
    """Build the preparer that the model's image processor configuration names; None when it has none (text only).

    `count_tokens` is needed by models that write text between a picture's tiles which their tokenizer does not keep as
    single tokens (Idefics3, not SmolVLM).

    Raises:
        UnsupportedModelError: No preparer for this image processor, or a setting of it is not implemented.
        EngineStartError: A configuration file cannot be read.
    """
    processor = _processor_configuration(directory)
    if processor is None:
        return None
    written = str(processor.get("image_processor_type") or processor.get("feature_extractor_type"))
    kind = written.removesuffix("Fast").removesuffix("Pil").replace("FeatureExtractor", "ImageProcessor")
    model = read_json(directory / "config.json") or {}
    if kind in _TILED:
        return Idefics3Preparer(directory, processor, model, count_tokens)
    build = _PREPARERS.get(kind)
    if build is None:
        known = ", ".join((*_PREPARERS, *_TILED))
        raise UnsupportedModelError(
            f"no preparer for the image processor {written!r} of {directory.name}; known: {known}",
            hint="serve it by vLLM: chiasm serve --engine vllm --topology agg",
        )
    return build(directory, processor, model)


def _processor_configuration(directory: Path) -> dict[str, Any] | None:
    """`preprocessor_config.json`, or its newer place inside `processor_config.json`."""
    own = read_json(directory / "preprocessor_config.json")
    if own is not None:
        return own
    shared = read_json(directory / "processor_config.json") or {}
    nested = shared.get("image_processor")
    return nested if isinstance(nested, dict) else None
