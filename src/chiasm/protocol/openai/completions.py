"""The text completions request."""

from typing import Annotated

from msgspec import Meta

from chiasm.protocol.openai.sampling import ChiasmOptions, JsonSchema, SamplingFields, StreamOptions

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class CompletionRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v1/completions`. `prompt` is a text, token ids, or a list of either."""

    prompt: str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)]
    max_tokens: int | None = 16
    logprobs: int | None = None


NESTED_NAMES = tuple(name for kind in (StreamOptions, JsonSchema, ChiasmOptions) for name in kind.__struct_fields__)
"""Field names below the top level, for hints at misspelt ones."""
