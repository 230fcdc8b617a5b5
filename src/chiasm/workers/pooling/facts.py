"""What settings change about a model's files, and what callers are told about the result."""

from typing import get_args

import msgspec

from chiasm.engines.pooling.tokens import InputTokenizer, PairTemplate
from chiasm.errors import EngineStartError
from chiasm.pooling.model_files import PoolingModel, Shape
from chiasm.protocol.pooling.work import PoolingInfo, PoolingTask, Scorer
from chiasm.settings import PoolingSettings

# The form in which Qwen3-Reranker was trained to be asked (its model card).
_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"

_TASKS: dict[Shape, tuple[PoolingTask, ...]] = {
    "embedder": ("embed", "token_embed", "score"),
    "late_interaction": ("token_embed", "score"),
    "sequence_classifier": ("classify",),
    "token_classifier": ("token_classify",),
    "yes_no": ("score",),
    "image_ranker": ("score",),
}
_SCORERS: dict[Shape, Scorer] = {
    "embedder": "bi_encoder",
    "late_interaction": "late_interaction",
    "sequence_classifier": "cross_encoder",
    "yes_no": "yes_no",
    "image_ranker": "image_ranker",
}


def adjusted(model: PoolingModel, settings: PoolingSettings) -> PoolingModel:
    """The model as settings want it served. Raises `EngineStartError` for what does not go together."""
    changes: dict[str, object] = {}
    if settings.pooling != "auto":
        changes["pooling"] = settings.pooling
    if settings.pooling == "step" and not (settings.step_token and model.is_causal):
        raise EngineStartError("Pooling 'step' is for decoders, and needs pooling.step_token")
    if settings.max_tokens:
        if model.pad_token:
            raise EngineStartError(
                f"A {model.model_type} model reads texts of one length: pooling.max_tokens must be 0"
            )
        if settings.max_tokens > model.max_tokens:
            raise EngineStartError(
                f"pooling.max_tokens {settings.max_tokens} is more than the model's {model.max_tokens}"
            )
        changes["max_tokens"] = settings.max_tokens
    if settings.logit_mean is not None:
        changes["mean"] = settings.logit_mean
    if settings.logit_sigma is not None:
        changes["sigma"] = settings.logit_sigma
    if changes.get("sigma", model.sigma) == 0:
        raise EngineStartError("A sigma of 0 divides by zero", hint="Set pooling.logit_sigma to another number")
    return msgspec.structs.replace(model, **changes)


def pooling_info(model: PoolingModel, width: int) -> PoolingInfo:
    """What the worker says about itself."""
    tasks, scorer = _TASKS[model.shape], _SCORERS.get(model.shape)
    if model.shape == "sequence_classifier":
        if len(model.labels) == 1:
            tasks = (*tasks, "score")
        else:
            scorer = None
        if model.is_causal:  # a reward model judges every token
            tasks = (*tasks, "token_classify") if model.pooling != "step" else ("token_classify",)
    if model.pooling == "step" and model.shape == "embedder":
        tasks, scorer = ("token_embed",), None
    assert set(tasks) <= set(get_args(PoolingTask))
    is_embedding = model.shape in ("embedder", "late_interaction")
    return PoolingInfo(
        tasks=tasks,
        scorer=scorer,
        width=width if is_embedding else 0,
        dimensions=model.dimensions if is_embedding else (),
        labels=model.labels,
        max_tokens=model.max_tokens,
        prompts=tuple(model.prompts),
        takes_images=model.takes_images,
    )


def pair_template(settings: PoolingSettings) -> PairTemplate:
    """How a yes/no model is asked."""
    instruction = settings.instruction.replace("{", "{{").replace("}", "}}")
    body = f"<Instruct>: {instruction}\n<Query>: {{query}}\n<Document>: {{document}}"
    return PairTemplate(before=_BEFORE, body=body, after=_AFTER)


def answer_ids(tokenizer: InputTokenizer, settings: PoolingSettings) -> tuple[int, int]:
    """The tokens of a yes/no model's yes and no. Raises `EngineStartError` when they are several."""
    return tokenizer.token_id(settings.yes_token), tokenizer.token_id(settings.no_token)
