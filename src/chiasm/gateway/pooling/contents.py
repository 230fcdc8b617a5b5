"""Texts and pictures of a body, in the forms that the pooling APIs know, gathered before anything is fetched."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from chiasm.errors import InvalidRequestError, UnsupportedFeatureError
from chiasm.gateway.openai.chat import Conversation
from chiasm.media.reference import MediaReference
from chiasm.protocol.generation import Message, TextPart
from chiasm.protocol.media import MediaItem
from chiasm.protocol.openai.chat import ChatMessage, ImageUrl
from chiasm.protocol.pooling.fields import Texts
from chiasm.protocol.pooling.items import InputItem
from chiasm.protocol.pooling.work import (
    ImageInput,
    MediaPairInput,
    PairInput,
    PoolingInfo,
    PoolInput,
    TextInput,
    TokensInput,
)

Fill = Callable[[Sequence[MediaItem]], tuple[PoolInput, ...]]
"""Makes a request's inputs, given the media of its references."""


class PictureAt(msgspec.Struct, frozen=True):
    """A picture, by the number of its reference in the request."""

    number: int


Content = TextInput | TokensInput | PictureAt
Side = str | PictureAt
"""One side of a pair."""


class Contents:
    """What has been read of one body. `references` are the pictures', every occurrence by itself, in order."""

    def __init__(self) -> None:
        self.references: list[MediaReference] = []

    def item(self, item: InputItem, pointer: str) -> list[Side]:
        """What an object stands for: one content, or as many as its parts. Raises `RequestError`."""
        given = [name for name in InputItem.__struct_fields__ if getattr(item, name) is not None]
        if len(given) != 1:
            raise InvalidRequestError(
                "An input is one text or one picture",
                hint='Send {"text": ...} or {"image": ...}',
                param=pointer,
            )
        if item.text is not None:
            return [item.text]
        if item.content is not None:
            return self._parts(ChatMessage(role="user", content=item.content), pointer)
        assert item.image is not None
        return [self.picture(item.image, f"{pointer}/image")]

    def message(self, messages: Sequence[ChatMessage]) -> Side:
        """The one content of a conversation of one message. Raises `RequestError`."""
        parts = self._parts(messages[0], "/messages/0")
        if len(messages) != 1 or len(parts) != 1:
            raise InvalidRequestError(
                "The model reads one text or one picture at a time",
                hint="Send one message with one part, or several inputs as input",
                param="/messages",
            )
        return parts[0]

    def of_texts(self, texts: Texts, prompt: str | None = None) -> list[Content]:
        """Inputs in OpenAI's four forms, and objects. Raises `InvalidRequestError` when they are mixed or empty."""
        if isinstance(texts, str):
            return [TextInput(texts, prompt)]
        if all(isinstance(one, str | InputItem) for one in texts):
            return [content for index, one in enumerate(texts) for content in self._of_text(one, index, prompt)]
        if all(isinstance(one, int) for one in texts):
            return [TokensInput(tuple(one for one in texts if isinstance(one, int)))]
        lists = [one for one in texts if isinstance(one, list)]
        if len(lists) != len(texts):
            raise InvalidRequestError("The input mixes texts and token ids", hint="Send one kind", param="/input")
        for index, ids in enumerate(lists):
            if not ids:
                raise InvalidRequestError("An input without tokens", param=f"/input/{index}")
        return [TokensInput(tuple(ids)) for ids in lists]

    def picture(self, image: str | ImageUrl, pointer: str) -> PictureAt:
        """A picture by its URL."""
        url, param = (image, pointer) if isinstance(image, str) else (image.url, f"{pointer}/url")
        self.references.append(MediaReference("image", url, param))
        return PictureAt(len(self.references) - 1)

    def _of_text(self, one: object, index: int, prompt: str | None) -> list[Content]:
        if isinstance(one, str):
            return [TextInput(one, prompt)]
        assert isinstance(one, InputItem)
        sides = self.item(one, f"/input/{index}")
        if len(sides) != 1:
            raise InvalidRequestError(
                "The model reads one text or one picture at a time",
                hint="Send parts as inputs of their own",
                param=f"/input/{index}/content",
            )
        return [TextInput(side, prompt) if isinstance(side, str) else side for side in sides]

    def _parts(self, message: ChatMessage, pointer: str) -> list[Side]:
        conversation = Conversation()
        conversation.add(message, pointer)
        if conversation.aliases:
            raise UnsupportedFeatureError(
                "'uuid' is not supported here", hint="Send the picture alone", param=conversation.aliases[0].param
            )
        first = len(self.references)
        self.references += conversation.references
        [written] = conversation.messages
        return _sides(written, first)


class Written(Protocol):
    """A body with an input or, instead, a conversation."""

    @property
    def input(self) -> Texts | None:
        """Texts, token ids or objects."""
        ...

    @property
    def messages(self) -> Sequence[ChatMessage] | None:
        """See `Contents.message`."""
        ...


def written(body: Written, contents: Contents, info: PoolingInfo, prompt: str | None = None) -> list[Content]:
    """What a body asks about. Raises `RequestError`, also for messages where the model takes no pictures."""
    if (body.input is None) == (body.messages is None):
        raise InvalidRequestError(
            "There is no input" if body.input is None else "input and messages exclude each other",
            hint="Send a text as input",
            param="/input",
        )
    if body.input is not None:
        return contents.of_texts(body.input, prompt)
    assert body.messages is not None
    if not info.takes_images:
        raise UnsupportedFeatureError("'messages' is not supported", hint="Send the text as input", param="/messages")
    side = contents.message(body.messages)
    return [TextInput(side, prompt) if isinstance(side, str) else side]


def _sides(message: Message, first_number: int) -> list[Side]:
    return [part.text if isinstance(part, TextPart) else PictureAt(first_number + part.item) for part in message.parts]


def inputs(contents: Sequence[Content]) -> Fill:
    """Single inputs."""
    return lambda items: tuple(ImageInput(items[one.number]) if isinstance(one, PictureAt) else one for one in contents)


def pairs(sides: Sequence[tuple[Side, Side]]) -> Fill:
    """Pairs of texts, or of which one or both are pictures."""

    def fill(items: Sequence[MediaItem]) -> tuple[PoolInput, ...]:
        return tuple(_pair(first, second, items) for first, second in sides)

    return fill


def _pair(first: Side, second: Side, items: Sequence[MediaItem]) -> PoolInput:
    if isinstance(first, str) and isinstance(second, str):
        return PairInput(first, second)
    return MediaPairInput(_filled(first, items), _filled(second, items))


def _filled(side: Side, items: Sequence[MediaItem]) -> str | MediaItem:
    return items[side.number] if isinstance(side, PictureAt) else side
