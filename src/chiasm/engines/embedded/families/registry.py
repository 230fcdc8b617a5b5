"""Pick the family of a model directory by its `model_type`; a family's module is imported only when it is picked."""

import importlib
from pathlib import Path
from typing import Any

from chiasm.engines.embedded.families.base import Family
from chiasm.errors import EngineStartError, UnsupportedModelError
from chiasm.media.prepare.model_files import read_json

_FAMILIES: dict[str, tuple[str, str]] = {
    "qwen2_vl": ("qwen2_vl", "Qwen2VL"),
    "qwen2_5_vl": ("qwen2_5_vl", "Qwen25VL"),
    "qwen3_vl": ("qwen3_vl", "Qwen3VL"),
    "idefics3": ("idefics3", "Idefics3"),
    "smolvlm": ("idefics3", "SmolVLM"),
    "llava": ("llava", "Llava"),
    "llava_onevision": ("llava_onevision", "LlavaOnevision"),
    "llama": ("causal", "Causal"),
    "mistral": ("causal", "Causal"),
    "qwen2": ("causal", "Causal"),
    "qwen3": ("causal", "Causal"),
}
"""Model type -> (module in this package, class)."""


def known_model_types() -> tuple[str, ...]:
    """Model types that `family_for` accepts."""
    return tuple(_FAMILIES)


def family_for(directory: Path) -> Family:
    """Build the family of the model in `directory`, without its weights.

    Raises:
        UnsupportedModelError: No family for this model type.
        EngineStartError: No configuration, or one that asks for something the engine does not compute.
    """
    written = read_json(directory / "config.json")
    if written is None:
        raise EngineStartError(
            f"no config.json in {directory.name}", hint="the model must be a local Hugging Face directory"
        )
    model_type = str(written.get("model_type"))
    if model_type not in _FAMILIES:
        raise UnsupportedModelError(
            f"the embedded engine has no family for model type {model_type!r}; known: {', '.join(_FAMILIES)}",
            hint="serve it by vLLM: chiasm serve --engine vllm --topology agg",
        )
    if written.get("quantization_config"):
        raise UnsupportedModelError(
            f"the weights of {directory.name} are quantized, which the embedded engine does not compute",
            hint="use the unquantized model or serve this one by vLLM: chiasm serve --engine vllm",
        )
    module, name = _FAMILIES[model_type]
    family: type[Family] = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    return family(directory, _configuration(directory))


def _configuration(directory: Path) -> Any:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError, TypeError, KeyError, StrictDataclassError) as error:
        raise EngineStartError(f"cannot read config.json of {directory.name}: {error}") from error
