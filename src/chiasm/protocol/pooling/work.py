"""The contract with a worker that turns texts into vectors, labels and scores."""

from typing import Literal, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from chiasm.errors import MediaError
from chiasm.observability.receipt import Span
from chiasm.protocol.media import CacheSalt, MediaItem
from chiasm.protocol.worker import Worker

PoolingTask = Literal["embed", "classify", "token_embed", "token_classify", "score"]
Scorer = Literal["cross_encoder", "bi_encoder", "late_interaction", "yes_no", "image_ranker"]
Truncation = Literal["refuse", "end", "start"]
PromptName = Literal["query", "document"]


class TextInput(msgspec.Struct, frozen=True):
    """One text. `prompt` names the model's own prefix for this use; None takes the model's default one."""

    text: str
    prompt: str | None = None


class TokensInput(msgspec.Struct, frozen=True):
    """Token ids, taken as they are: nothing is added to them."""

    token_ids: tuple[int, ...]


class PairInput(msgspec.Struct, frozen=True):
    """Two texts that are read together, such as a query and a document."""

    first: str
    second: str


class ImageInput(msgspec.Struct, frozen=True):
    """One picture, checked and identified; for models whose `PoolingInfo.takes_images` says so."""

    item: MediaItem


class MediaPairInput(msgspec.Struct, frozen=True):
    """Two sides that are compared, at least one of them a picture. `text` is what else is said of the second."""

    first: str | MediaItem
    second: str | MediaItem
    text: str = ""


PoolInput = TextInput | TokensInput | PairInput | ImageInput | MediaPairInput


def media_of(one: PoolInput) -> tuple[MediaItem, ...]:
    """The pictures of an input, in order."""
    if isinstance(one, ImageInput):
        return (one.item,)
    if isinstance(one, MediaPairInput):
        return tuple(side for side in (one.first, one.second) if isinstance(side, MediaItem))
    return ()


class PoolParams(msgspec.Struct, frozen=True, kw_only=True):
    """How inputs are read and what is done with the numbers.

    Attributes:
        dimensions: Embeddings are cut to so many leading values; None leaves them whole.
        normalize: Whether embeddings get length one; None is the model's own way.
        activate: Whether logits become probabilities or scores; None is the model's own way.
        truncate: What happens to an input that is too long.
        max_tokens: Longest input in tokens, special ones included; None is the model's own limit.
        max_document_tokens: Longest second text of a pair, or only text, without special tokens; longer ones are cut.
        add_special_tokens: Whether the tokenizer adds its special tokens to texts.
        with_offsets: Whether outputs tell where their tokens stand in the text.
        reports_failures: Whether an input with a picture that cannot be used becomes an output with its error, instead
            of ending the request.
    """

    dimensions: int | None = None
    normalize: bool | None = None
    activate: bool | None = None
    truncate: Truncation = "refuse"
    max_tokens: int | None = None
    max_document_tokens: int | None = None
    add_special_tokens: bool = True
    with_offsets: bool = False
    reports_failures: bool = False


class PoolRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One task over several inputs. Equal inputs are computed once.

    What is kept of pictures is found again only by requests with the same `cache_salt`.
    """

    request_id: str
    task: PoolingTask
    inputs: tuple[PoolInput, ...]
    params: PoolParams = PoolParams()
    cache_salt: CacheSalt = ""
    timeout_s: float = 120.0


class TokenPlace(msgspec.Struct, frozen=True):
    """Where a token stands: in which text of its input, and from which to which character; -1 is a special token."""

    text: int
    start: int
    end: int


class PoolOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What one input came to.

    `values` is float32: [width] for embed, [labels] for classify, [tokens, width] and [tokens, labels] for the token
    tasks, [1] for score. Equal inputs share one array: it must not be written to. With an `error` there are none.
    """

    values: NDArray[np.float32]
    num_tokens: int
    is_truncated: bool = False
    places: tuple[TokenPlace, ...] = ()
    error: MediaError | None = None


class PoolResponse(msgspec.Struct, frozen=True, kw_only=True):
    """One output per input, in order. `spans` count from the moment the worker received the request.

    `num_visual_tokens` are those of the request's distinct pictures, which are among those of the outputs;
    `num_cached_embeddings` of the pictures were not computed for it.
    """

    outputs: tuple[PoolOutput, ...]
    num_computed_tokens: int
    num_visual_tokens: int = 0
    num_cached_embeddings: int = 0
    spans: tuple[Span, ...] = ()


class PoolingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a pooling worker's model can do; fixed while it lives.

    Attributes:
        tasks: Those it takes.
        scorer: How it scores pairs; None where it does not.
        width: Of an embedding; 0 without one.
        dimensions: Widths to which embeddings may be cut, largest first; empty lets any be asked for.
        labels: Names of classes, in the order of the logits.
        max_tokens: Longest input.
        prompts: Names of prefixes that texts can have.
        takes_images: Whether inputs may be pictures: embedded into the same space as texts, or ranked for a text.
    """

    tasks: tuple[PoolingTask, ...]
    scorer: Scorer | None = None
    width: int = 0
    dimensions: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    max_tokens: int
    prompts: tuple[str, ...] = ()
    takes_images: bool = False


@runtime_checkable
class PoolingWorker(Worker, Protocol):
    """A worker that also, or only, pools."""

    @property
    def pooling(self) -> PoolingInfo:
        """Fixed facts about the model's pooling side."""
        ...

    async def pool(self, request: PoolRequest) -> PoolResponse:
        """Run one request; cancelling the call drops what is not computed yet.

        Raises:
            MediaError: A picture cannot be taken; `item` is its position among the pictures of all inputs.
            RequestError: An input cannot be taken; `item` is its position.
            OverloadedError: Too many tokens wait.
            DeadlineExceededError: `timeout_s` passed.
            EngineError: The engine failed.
        """
        ...
