"""One generation: what to compute, and the events it ends in."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from chiasm.observability.receipt import Route, Span
from chiasm.protocol.adapters import AdapterRef
from chiasm.protocol.contract import CONTRACT_VERSION
from chiasm.protocol.kv import KvHandle
from chiasm.protocol.media import CacheSalt, MediaItem


class TextPart(msgspec.Struct, frozen=True, tag="text"):
    """Literal text. Special tokens written in it are text, never placeholders."""

    text: str


class ItemPart(msgspec.Struct, frozen=True, tag="item"):
    """The place of `items[item]` in the conversation; the same item may stand in several places."""

    item: int


class Message(msgspec.Struct, frozen=True):
    """One turn; parts keep the caller's order."""

    role: Literal["system", "user", "assistant"]
    parts: tuple[TextPart | ItemPart, ...]


class ChatPrompt(msgspec.Struct, frozen=True, tag="chat"):
    """Rendered with the model's chat template."""

    messages: tuple[Message, ...]
    continue_final_message: bool = False


class TextPrompt(msgspec.Struct, frozen=True, tag="text"):
    """Raw text for the completions API; no template."""

    text: str


class TokensPrompt(msgspec.Struct, frozen=True, tag="tokens"):
    """Token ids, used as they are."""

    token_ids: tuple[int, ...]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen, and when. `temperature` 0 is greedy. Ranges are checked here, on both sides of the wire.

    Lower `priority` goes first where requests wait for a worker's slots and steps; it orders, and starves nobody.
    """

    temperature: Annotated[float, Meta(ge=0, le=100)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=0)] = 0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    num_top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    json_schema: str | None = None
    n: Annotated[int, Meta(ge=1, le=128)] = 1
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of work for a worker. `timeout_s` is what is left of the caller's deadline.

    Without `stream`, events may come all at the end, which costs less. With `hands_over_kv` the worker keeps the
    prompt's keys and values for another one and names them in `RequestFinished.kv`; with `kv` it takes those of another
    one instead of computing the prompt. What it leaves in caches is found only by requests of the same `cache_salt`.
    """

    version: int = CONTRACT_VERSION
    request_id: str
    prompt: ChatPrompt | TextPrompt | TokensPrompt
    items: tuple[MediaItem, ...] = ()
    sampling: SamplingParams = SamplingParams()
    stream: bool = True
    hands_over_kv: bool = False
    kv: KvHandle | None = None
    cache_salt: CacheSalt = ""
    adapter: AdapterRef | None = None
    timeout_s: Annotated[float, Meta(gt=0)] = 120.0


class TokenLogprob(msgspec.Struct, frozen=True):
    """Log probability of a token under the unmodified distribution; `token` is its text, `token_bytes` its bytes."""

    token_id: int
    token: str
    token_bytes: bytes
    logprob: float
    top: tuple["TokenLogprob", ...] = ()


class TokenEvent(msgspec.Struct, frozen=True, tag="token"):
    """New output of one choice. `text` may be empty while a character is incomplete or a stop string may begin."""

    choice: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None


class ChoiceFinished(msgspec.Struct, frozen=True, tag="choice_finished"):
    """The last event of a choice. `stop` is the stop string or token id that ended it, None for end-of-text."""

    choice: int
    reason: Literal["stop", "length"]
    stop: str | int | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts. Prompt tokens include visual tokens; output tokens include those of all choices."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int = 0
    num_visual_tokens: int = 0
    num_cached_embeddings: int = 0


class RequestFinished(msgspec.Struct, frozen=True, tag="finished"):
    """The last event of a request. `spans` count from the moment the worker received it."""

    usage: Usage
    spans: tuple[Span, ...] = ()
    kv: KvHandle | None = None


class RouteTaken(msgspec.Struct, frozen=True, tag="route"):
    """Which way the request goes, known so far. May come several times, also before a failure; the last one counts."""

    route: Route


GenerateEvent = TokenEvent | ChoiceFinished | RequestFinished | RouteTaken


def merge_adjacent(events: list[GenerateEvent]) -> list[GenerateEvent]:
    """Join runs of token events of the same choice; the order of everything else stays."""
    merged: list[GenerateEvent] = []
    run: list[TokenEvent] = []
    for event in events:
        token = event if isinstance(event, TokenEvent) else None
        if run and (token is None or token.choice != run[0].choice):
            merged.append(_joined(run))
            run = []
        if token is None:
            merged.append(event)
        else:
            run.append(token)
    return [*merged, _joined(run)] if run else merged


def _joined(run: list[TokenEvent]) -> TokenEvent:
    if len(run) == 1:
        return run[0]
    logprobs = None
    if any(event.logprobs is not None for event in run):
        logprobs = tuple(entry for event in run for entry in event.logprobs or ())
    token_ids = tuple(token_id for event in run for token_id in event.token_ids)
    return TokenEvent(run[0].choice, "".join([event.text for event in run]), token_ids, logprobs)
