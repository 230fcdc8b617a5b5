"""Whether a request is one for the model at all, before anything of it is read."""

from chiasm.errors import InvalidRequestError, UnsupportedFeatureError, UnsupportedMediaError
from chiasm.protocol.media import EmbeddingHandle, LateSource, MediaItem
from chiasm.protocol.pooling.work import (
    ImageInput,
    MediaPairInput,
    PairInput,
    PoolingInfo,
    PoolInput,
    PoolRequest,
    media_of,
)


def check_request(request: PoolRequest, facts: PoolingInfo, model: str) -> None:
    """Raise `RequestError` for a task or input that a model with these facts does not take."""
    if request.task not in facts.tasks:
        raise UnsupportedFeatureError(
            f"{model} does not {request.task}", hint=f"It is served for: {', '.join(facts.tasks)}"
        )
    for number, medium in enumerate(medium for one in request.inputs for medium in media_of(one)):
        _check_medium(medium, number, facts, model)
    for item, one in enumerate(request.inputs):
        if request.task == "score":
            _check_pair(one, item, facts)
        elif isinstance(one, MediaPairInput):
            raise InvalidRequestError("A pair with a picture is scored, and nothing else", item=item)
        elif isinstance(one, ImageInput) and request.task != "embed":
            raise InvalidRequestError(f"A picture cannot be used for {request.task}", item=item)
    if request.params.dimensions is not None:
        _check_dimensions(request.params.dimensions, facts)


def _check_medium(medium: MediaItem, item: int, facts: PoolingInfo, model: str) -> None:
    if not facts.takes_images:
        raise UnsupportedMediaError(f"Media item {item}: {model} takes no pictures", hint="Send texts", item=item)
    if medium.kind != "image":
        raise UnsupportedMediaError(f"Media item {item}: {model} takes pictures, no videos", item=item)
    if isinstance(medium.source, EmbeddingHandle | LateSource):
        raise UnsupportedFeatureError("Pooling takes media, not embeddings", hint="Send the picture itself")


def _check_pair(one: PoolInput, item: int, facts: PoolingInfo) -> None:
    if not isinstance(one, PairInput | MediaPairInput):
        raise InvalidRequestError("Scores are of pairs", item=item)
    if facts.scorer == "image_ranker":
        is_fit = isinstance(one, MediaPairInput) and isinstance(one.first, str) and isinstance(one.second, MediaItem)
        if not is_fit:
            raise InvalidRequestError("The model scores pictures for a text", hint="Send text first", item=item)
    elif isinstance(one, MediaPairInput) and one.text:
        raise InvalidRequestError("The model reads a picture or a text, not both at once", item=item)


def _check_dimensions(dimensions: int, facts: PoolingInfo) -> None:
    if dimensions > facts.width:
        raise InvalidRequestError(f"dimensions {dimensions} is more than the model's {facts.width}")
    if facts.dimensions and dimensions not in (*facts.dimensions, facts.width):
        raise InvalidRequestError(
            f"The model was not trained for {dimensions} dimensions",
            hint=f"Use one of {', '.join(map(str, facts.dimensions))}",
        )
