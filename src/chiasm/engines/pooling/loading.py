"""A model directory to a backbone that takes packed rows, and its head."""

from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from chiasm.engines.embedded.families.loading import read_weights
from chiasm.engines.pooling.aspect_sentiment import ARCHITECTURE, load_aspect_head
from chiasm.engines.pooling.attention import IMPLEMENTATION
from chiasm.engines.pooling.backbone import Computing, arranged
from chiasm.engines.pooling.dual_loading import load_dual
from chiasm.engines.pooling.heads import answer_head, classification_head, projection_head
from chiasm.engines.pooling.loaded import LoadedPooler
from chiasm.engines.pooling.ranker_loading import load_ranker
from chiasm.errors import EngineStartError
from chiasm.pooling.model_files import PoolingModel


def load_pooler(
    directory: Path, model: PoolingModel, computing: Computing, answers: tuple[int, int] | None = None
) -> LoadedPooler:
    """Read configuration and weights. `answers` are the token ids of yes and no, for a model of that shape.

    Raises:
        EngineStartError: Something is missing; the message names it.
    """
    if model.shape == "image_ranker":
        return load_ranker(directory, computing)
    dtype = computing.dtype
    config = _configuration(directory)
    if model.takes_images:
        return load_dual(directory, config, computing)
    if model.shape == "yes_no":
        assert answers is not None, "a yes/no model knows its answers"
        whole = _weights(AutoModelForCausalLM, directory, config, dtype)
        backbone, head, width = whole.base_model, answer_head(whole.lm_head.weight, *answers), 1
    elif model.shape == "token_classifier" and ARCHITECTURE in (config.architectures or ()):
        backbone = _weights(AutoModel, directory, config, dtype)
        _taken_pooler(backbone)
        head, width = load_aspect_head(directory, config.hidden_size, model.labels), len(model.labels)
    elif model.shape in ("sequence_classifier", "token_classifier"):
        kind = (
            AutoModelForSequenceClassification
            if model.shape == "sequence_classifier"
            else AutoModelForTokenClassification
        )
        whole = _weights(kind, directory, config, dtype)
        backbone = getattr(whole, whole.base_model_prefix)
        inner_pooler = _taken_pooler(backbone)
        head, width = classification_head(whole, inner_pooler), len(model.labels)
    else:
        backbone = _weights(AutoModel, directory, config, dtype)
        _taken_pooler(backbone)
        head, projected = projection_head(directory, model)
        width = projected or config.hidden_size
    has_types = getattr(config, "type_vocab_size", 0) > 1
    offset = int(config.pad_token_id) + 1 if model.model_type in ("roberta", "xlm-roberta", "camembert") else 0
    return LoadedPooler(arranged(backbone, computing, offset), head, width, has_types, offset)


def _taken_pooler(backbone: Any) -> nn.Module | None:
    """Take BERT's own pooler out of the backbone, which would apply it to the first text of a row only."""
    inner: nn.Module | None = getattr(backbone, "pooler", None)
    if inner is not None:
        backbone.pooler = None
    return inner


def _configuration(directory: Path) -> Any:
    try:
        return AutoConfig.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError, TypeError, KeyError, StrictDataclassError) as error:
        raise EngineStartError(f"Cannot read config.json of {directory.name}: {error}") from error


def _weights(kind: Any, directory: Path, config: Any, dtype: torch.dtype) -> Any:
    """A backbone's own pooler is not used, and may be missing."""
    unneeded = "pooler." if kind is AutoModel else None
    return read_weights(kind, directory, config, dtype, unneeded=unneeded, attn_implementation=IMPLEMENTATION)
