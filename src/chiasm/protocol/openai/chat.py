"""The chat completions request."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from chiasm.protocol.media import MAX_SAMPLED_FRAMES
from chiasm.protocol.openai.sampling import ChiasmOptions, JsonSchema, SamplingFields, StreamOptions


class TextContent(msgspec.Struct, tag="text", tag_field="type", forbid_unknown_fields=True):
    """Literal text."""

    text: str


class ImageUrl(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Where a picture is. `detail` is a hint; models here see every picture at their processor's own resolution."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ImageContent(msgspec.Struct, tag="image_url", tag_field="type", kw_only=True, forbid_unknown_fields=True):
    """A picture. `uuid` is the caller's name for its bytes: a name keeps meaning the same bytes."""

    image_url: str | ImageUrl | None = None
    uuid: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class AudioContent(msgspec.Struct, tag="input_audio", tag_field="type"):
    """Recognised and refused."""


class AudioUrlContent(msgspec.Struct, tag="audio_url", tag_field="type"):
    """Recognised and refused."""


class VideoUrl(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Where a video is."""

    url: str


class VideoContent(msgspec.Struct, tag="video_url", tag_field="type", kw_only=True, forbid_unknown_fields=True):
    """A video. `uuid` is the caller's name for its bytes, and for which frames of it are meant."""

    video_url: str | VideoUrl | None = None
    uuid: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class FileContent(msgspec.Struct, tag="file", tag_field="type"):
    """Recognised and refused."""


class RefusalContent(msgspec.Struct, tag="refusal", tag_field="type"):
    """Recognised and refused."""


class ImageEmbedsContent(msgspec.Struct, tag="image_embeds", tag_field="type"):
    """Recognised and refused: embeddings come from encoders only."""


class AudioEmbedsContent(msgspec.Struct, tag="audio_embeds", tag_field="type"):
    """Recognised and refused: embeddings come from encoders only."""


class VideoEmbedsContent(msgspec.Struct, tag="video_embeds", tag_field="type"):
    """Recognised and refused: embeddings come from encoders only."""


EmbedsContent = ImageEmbedsContent | AudioEmbedsContent | VideoEmbedsContent
OtherMediaContent = AudioContent | AudioUrlContent | FileContent
Content = TextContent | ImageContent | VideoContent | OtherMediaContent | EmbedsContent | RefusalContent


class ChatMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn. Fields after `content` are there to be checked against `fields.MESSAGE_POLICY`."""

    role: str
    content: str | list[Content] | None = None
    name: Any = None
    refusal: Any = None
    annotations: Any = None
    audio: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None
    tool_call_id: Any = None
    function_call: Any = None


class ProcessorOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How many frames of every video of the request are looked at: per second of it, or in all; not both."""

    fps: Annotated[float, Meta(gt=0, le=1000)] | None = None
    num_frames: Annotated[int, Meta(ge=1, le=MAX_SAMPLED_FRAMES)] | None = None


class ChatCompletionRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v1/chat/completions`, without what `fields.CHAT_POLICY` accepts or refuses."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    mm_processor_kwargs: dict[str, Any] | None = None


NESTED_NAMES = tuple(
    name
    for kind in (
        ChatMessage,
        TextContent,
        ImageContent,
        ImageUrl,
        VideoContent,
        ProcessorOptions,
        StreamOptions,
        JsonSchema,
        ChiasmOptions,
    )
    for name in kind.__struct_fields__
)
"""Field names below the top level, for hints at misspelt ones."""
