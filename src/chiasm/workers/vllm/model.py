"""What vLLM has loaded, as Chiasm reads the same directory."""

from pathlib import Path
from typing import Any

from chiasm.engines.pooling.tokens import InputTokenizer
from chiasm.errors import EngineStartError, UnsupportedModelError
from chiasm.pooling.model_files import PoolingModel, read_pooling_model
from chiasm.workers.pooling.facts import pooling_info
from chiasm.workers.pooling.tasks import Reader
from chiasm.workers.pooling.worker import picture_preparer
from chiasm.workers.vllm.requests import ServedModel

_SHAPES = ("embedder", "sequence_classifier", "token_classifier", "image_ranker")


def served_model(config: Any) -> ServedModel:
    """Read the directory of vLLM's `ModelConfig`, and leave that as it is.

    Raises:
        UnsupportedModelError: Not a kind of model whose rows mean the same in vLLM.
        EngineStartError: Files are missing, or vLLM pools in another way than they say.
    """
    directory = Path(config.model)
    if not directory.is_dir():
        raise EngineStartError(
            "vLLM serves this model by a name, and the processor reads its files", hint="Serve a local directory"
        )
    model = read_pooling_model(directory)
    _check(model, config.pooler_config)
    most = min(model.max_tokens, int(config.max_model_len))
    reader = Reader(model, InputTokenizer(directory, model, max_tokens=most), similarity=None)
    width = int(config.embedding_size) if model.shape == "embedder" else 0
    preparer = picture_preparer(directory) if model.takes_images else None
    return ServedModel(directory.name, model, reader, pooling_info(model, width), preparer)


def _check(model: PoolingModel, pooler: Any) -> None:
    if model.shape not in _SHAPES or (model.takes_images and model.shape != "image_ranker"):
        raise UnsupportedModelError(
            f"Inside vLLM no processor serves a {model.model_type} {model.shape}", hint="Serve it with chiasm serve"
        )
    if pooler.logit_mean is not None or pooler.logit_sigma is not None:
        raise EngineStartError(
            "vLLM would calibrate logits, and the processor would again",
            hint="Write logit_mean and logit_sigma into config.json instead of --pooler-config",
        )
    chosen = str(pooler.get_seq_pooling_type()).lower()
    if model.shape == "embedder" and chosen != model.pooling:
        raise EngineStartError(
            f"vLLM pools by {chosen}, and the model's files say {model.pooling}",
            hint=f"""Start vLLM with --pooler-config '{{"seq_pooling_type": "{model.pooling.upper()}"}}'""",
        )
