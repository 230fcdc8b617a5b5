"""What a request body comes to: the work, and the form of the answer."""

from typing import Protocol

import msgspec

from chiasm.errors import InvalidRequestError
from chiasm.media.reference import MediaReference
from chiasm.observability.receipt import Receipt
from chiasm.protocol.generation import ChatPrompt, GenerateEvent, SamplingParams, TextPrompt, TokensPrompt, Usage
from chiasm.protocol.openai.sampling import SamplingFields

MAX_CHOICES = 128
"""Prompts times n of one request."""


class Alias(msgspec.Struct, frozen=True):
    """The caller's name for the bytes of item `item`."""

    item: int
    name: str
    param: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request. `items` of every prompt are those fetched for `references`, in order."""

    model: str | None
    prompts: tuple[ChatPrompt | TextPrompt | TokensPrompt, ...]
    references: tuple[MediaReference, ...] = ()
    aliases: tuple[Alias, ...] = ()
    sampling: SamplingParams
    is_stream: bool
    has_usage_chunk: bool
    wants_receipt: bool
    timeout_s: float | None

    @property
    def num_choices(self) -> int:
        """Choices over all prompts."""
        return len(self.prompts) * self.sampling.n

    def without_urls(self) -> "Plan":
        """The same plan once its media are fetched: which place a reference has is kept, what it referred to is not."""
        if not self.references:
            return self
        references = tuple(msgspec.structs.replace(reference, url="", payload=None) for reference in self.references)
        return msgspec.structs.replace(self, references=references)


class Heading(msgspec.Struct, frozen=True, kw_only=True):
    """What every part of a response repeats."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class Writer(Protocol):
    """Turns the events of one request into bytes, either as a stream or as a whole."""

    def opening(self) -> bytes:
        """Events that come before the first output."""
        ...

    def chunks(self, batch: list[GenerateEvent]) -> bytes:
        """Events for a batch; empty when it holds nothing to show."""
        ...

    def closing(self, usage: Usage, receipt: Receipt | None) -> bytes:
        """Events after the last output, `[DONE]` included."""
        ...

    def add(self, batch: list[GenerateEvent]) -> None:
        """Collect a batch for `whole`."""
        ...

    def whole(self, usage: Usage, receipt: Receipt | None) -> bytes:
        """The complete response body."""
        ...


class Dialect(Protocol):
    """One of the APIs that lead to a generation."""

    @property
    def name(self) -> str:
        """Label in metrics and logs."""
        ...

    @property
    def id_prefix(self) -> str:
        """What response ids of this API start with."""
        ...

    def plan(self, body: bytes) -> Plan:
        """Check a body. Raises `RequestError`."""
        ...

    def writer(self, heading: Heading, plan: Plan) -> Writer:
        """Write responses for one request."""
        ...


def check_choices(num_prompts: int, sampling: SamplingParams) -> None:
    """Raise `InvalidRequestError` when one request asks for too many choices."""
    if num_prompts * sampling.n > MAX_CHOICES:
        raise InvalidRequestError(
            f"{num_prompts} prompts x n {sampling.n} are more than {MAX_CHOICES} choices",
            hint="Split them over several requests",
            param="/n",
        )


def has_usage_chunk(fields: SamplingFields) -> bool:
    """Whether a stream ends with token counts. Raises `InvalidRequestError` for stream options without a stream."""
    if fields.stream_options is None:
        return False
    if not fields.stream:
        raise InvalidRequestError(
            "stream_options without stream", hint="Set stream to true or remove it", param="/stream_options"
        )
    return bool(fields.stream_options.include_usage)
