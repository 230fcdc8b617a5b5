"""Inputs that are objects: a text, or a picture where the model takes any."""

from typing import Annotated

import msgspec
from msgspec import Meta

from chiasm.protocol.openai.chat import Content, ImageUrl


class InputItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Exactly one of: a text, a picture by its URL or data URL, or content in the form of a chat message's parts."""

    text: str | None = None
    image: str | ImageUrl | None = None
    content: Annotated[list[Content], Meta(min_length=1)] | None = None


ITEM_NAMES = (*InputItem.__struct_fields__, "type", "image_url", "url")
"""For hints at misspelt names."""
