"""What all pooling endpoints understand, and what they accept or refuse by name."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from chiasm.errors import InvalidRequestError
from chiasm.observability.receipt import Receipt
from chiasm.protocol.openai.chat import ChatMessage
from chiasm.protocol.openai.completions import TokenId
from chiasm.protocol.openai.fields import Accepted, FieldPolicy, Refused
from chiasm.protocol.openai.responses import ChiasmBody
from chiasm.protocol.openai.sampling import ChiasmOptions
from chiasm.protocol.pooling.items import ITEM_NAMES, InputItem
from chiasm.protocol.pooling.work import PoolParams

Texts = str | Annotated[list[str | TokenId | list[TokenId] | InputItem], Meta(min_length=1)]
"""One text, several, token ids of one input, or of several; among texts also objects."""
Messages = Annotated[list[ChatMessage], Meta(min_length=1)]
EncodingFormat = Literal["float", "base64"]


_CUT = "/truncate_prompt_tokens"


class PoolingFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of every request. `truncate_prompt_tokens` cuts inputs to so many tokens, -1 to what the model takes."""

    model: str | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    use_activation: bool | None = None
    chiasm: ChiasmOptions | None = None

    def params(self, *, cuts_by_itself: bool = False) -> PoolParams:
        """How inputs are read. `cuts_by_itself`: too long ones are cut without being asked for, and reported.

        Raises `InvalidRequestError`.
        """
        cut = self.truncate_prompt_tokens
        if cut == 0:
            raise InvalidRequestError("Nothing is left of 0 tokens", hint="-1 cuts to what the model takes", param=_CUT)
        side: Literal["start", "end"] = "start" if self.truncation_side == "left" else "end"
        return PoolParams(
            normalize=self.use_activation,
            activate=self.use_activation,
            truncate=side if cut is not None or cuts_by_itself else "refuse",
            max_tokens=None if cut == -1 else cut,
        )


POOLING_POLICY: FieldPolicy = {
    "user": Accepted(str | None, "a label for the caller's own records"),
    "request_id": Accepted(str | None, "ids are the server's; yours stays with you"),
    "priority": Refused((None, 0), "Requests are served in the order they came"),
    "padding": Refused((None, "do_not_pad"), "Inputs are never padded"),
    "embed_dtype": Refused((None, "float32"), "Vectors are float32"),
    "endianness": Refused((None, "native", "little"), "Vectors are little-endian"),
    "cache_salt": Refused((None,), "Cache scopes follow the API key"),
    "mm_processor_kwargs": Refused((None, {}), "The model's own settings are used"),
    "messages": Refused((None,), "Send the text as input"),
}
"""Of every pooling endpoint."""

NESTED_NAMES = (*ChiasmOptions.__struct_fields__, *ITEM_NAMES)


class PoolingUsage(msgspec.Struct, frozen=True):
    """Tokens of all inputs as they were read: special tokens included, what was cut off not."""

    prompt_tokens: int
    total_tokens: int


class PoolingBody(msgspec.Struct, frozen=True, kw_only=True):
    """What every answer says. `truncated` are positions of inputs that were cut; `dtype` is the compute type."""

    id: str
    object: str = "list"
    created: int
    model: str
    dtype: str
    usage: PoolingUsage
    truncated: list[int] | UnsetType = UNSET
    chiasm: ChiasmBody | UnsetType = UNSET


class Heading(msgspec.Struct, frozen=True, kw_only=True):
    """What every answer repeats."""

    id: str
    created: int
    model: str
    dtype: str
    usage: PoolingUsage
    truncated: tuple[int, ...]
    receipt: Receipt | None

    def shared(self) -> dict[str, object]:
        """Fields of `PoolingBody`."""
        return {
            "id": self.id,
            "created": self.created,
            "model": self.model,
            "dtype": self.dtype,
            "usage": self.usage,
            "truncated": list(self.truncated) or UNSET,
            "chiasm": UNSET if self.receipt is None else ChiasmBody(self.receipt),
        }
