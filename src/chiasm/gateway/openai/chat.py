"""Chat completions: messages to a prompt and references to media, in the caller's order."""

from operator import attrgetter

import msgspec

from chiasm.errors import (
    InvalidRequestError,
    MediaRefusedError,
    RequestError,
    UnsupportedFeatureError,
    UnsupportedMediaError,
)
from chiasm.gateway.openai.chat_writer import ChatWriter
from chiasm.gateway.openai.plan import Alias, Heading, Plan, check_choices, has_usage_chunk
from chiasm.media.reference import MediaReference
from chiasm.protocol.generation import ChatPrompt, ItemPart, Message, TextPart
from chiasm.protocol.openai.chat import (
    NESTED_NAMES,
    AudioContent,
    AudioUrlContent,
    ChatCompletionRequest,
    ChatMessage,
    Content,
    EmbedsContent,
    ImageContent,
    ProcessorOptions,
    RefusalContent,
    TextContent,
    VideoContent,
)
from chiasm.protocol.openai.decode import decode_request
from chiasm.protocol.openai.faults import request_fault
from chiasm.protocol.openai.fields import CHAT_POLICY, MESSAGE_POLICY, check_field
from chiasm.protocol.openai.sampling import sampling_params

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TOOL_ROLES = ("tool", "function")
_policed = attrgetter(*MESSAGE_POLICY)
_NOTHING_POLICED = (None,) * len(MESSAGE_POLICY)


class ChatDialect:
    """`POST /v1/chat/completions`."""

    name = "chat"
    id_prefix = "chatcmpl"

    def plan(self, body: bytes) -> Plan:
        """Check a body. Raises `RequestError`."""
        request = decode_request(body, ChatCompletionRequest, CHAT_POLICY, NESTED_NAMES)
        sampling = sampling_params(
            request, max_tokens=_max_tokens(request), num_top_logprobs=_num_top_logprobs(request)
        )
        check_choices(1, sampling)
        conversation = Conversation(_frames(request))
        for index, message in enumerate(request.messages):
            conversation.add(message, f"/messages/{index}")
        options = request.chiasm
        return Plan(
            model=request.model,
            prompts=(ChatPrompt(tuple(conversation.messages), _continues(request)),),
            references=tuple(conversation.references),
            aliases=tuple(conversation.aliases),
            sampling=sampling,
            is_stream=bool(request.stream),
            has_usage_chunk=has_usage_chunk(request),
            wants_receipt=options is not None and options.receipt,
            timeout_s=options.timeout_s if options else None,
        )

    def writer(self, heading: Heading, plan: Plan) -> ChatWriter:
        """Write responses for one request."""
        return ChatWriter(heading, plan.num_choices, plan.has_usage_chunk)


class Conversation:
    """Messages so far, and the media they name. Every occurrence of a medium is an item of its own, in order."""

    def __init__(self, frames: ProcessorOptions | None = None) -> None:
        """`frames` says which frames of videos are meant."""
        self._frames = frames or ProcessorOptions()
        self.messages: list[Message] = []
        self.references: list[MediaReference] = []
        self.aliases: list[Alias] = []

    def add(self, message: ChatMessage, pointer: str) -> None:
        """Append a turn. Raises `RequestError` for what cannot be rendered."""
        role = _role(message, pointer)
        policed = _policed(message)
        if policed != _NOTHING_POLICED:
            for name, value in zip(MESSAGE_POLICY, policed, strict=True):
                if value is not None:
                    check_field(name, value, MESSAGE_POLICY[name], f"{pointer}/{name}")
        if message.content is None:
            raise InvalidRequestError("The message has no content", param=f"{pointer}/content")
        if isinstance(message.content, str):
            parts: tuple[TextPart | ItemPart, ...] = (TextPart(message.content),)
        else:
            parts = tuple(
                self._part(content, message.role, f"{pointer}/content/{index}")
                for index, content in enumerate(message.content)
            )
        self.messages.append(Message(role, parts))  # type: ignore[arg-type]

    def _part(self, content: Content, role: str, pointer: str) -> TextPart | ItemPart:
        if isinstance(content, TextContent):
            return TextPart(content.text)
        if not isinstance(content, ImageContent | VideoContent):
            raise self._refusal(content, pointer)
        if role != "user":
            what = "A picture" if isinstance(content, ImageContent) else "A video"
            raise InvalidRequestError(
                f"{what} in a message of role '{role}'", hint="Put it into a user message", param=pointer
            )
        item = len(self.references)
        if isinstance(content, ImageContent):
            self.references.append(_reference(content, pointer))
        else:
            self.references.append(_video_reference(content, pointer, self._frames))
        if content.uuid is not None:
            self.aliases.append(Alias(item, content.uuid, f"{pointer}/uuid"))
        return ItemPart(item)

    def _refusal(self, content: Content, pointer: str) -> RequestError:
        kind = content.__struct_config__.tag
        item = len(self.references)
        if isinstance(content, RefusalContent):
            return UnsupportedFeatureError(
                "Content of type 'refusal'", hint="Send what the assistant said as text", param=pointer
            )
        if isinstance(content, EmbedsContent):
            return MediaRefusedError(
                f"Media item {item}: '{kind}' is not taken from clients",
                hint="Send the medium itself as image_url or video_url",
                param=pointer,
                item=item,
            )
        if isinstance(content, AudioContent | AudioUrlContent):
            return UnsupportedMediaError(
                f"Media item {item}: '{kind}' is audio, which no model here takes",
                hint="Send what is said as text; only image_url and video_url are taken",
                param=pointer,
                item=item,
            )
        return UnsupportedMediaError(
            f"Media item {item}: '{kind}' is not supported",
            hint="Only image_url and video_url are",
            param=pointer,
            item=item,
        )


def _reference(content: ImageContent, pointer: str) -> MediaReference:
    image_url = content.image_url
    if image_url is None:
        raise UnsupportedFeatureError(
            "A picture without image_url", hint="Send its bytes or URL again; a uuid alone is not enough", param=pointer
        )
    if isinstance(image_url, str):
        return MediaReference("image", image_url, f"{pointer}/image_url")
    return MediaReference("image", image_url.url, f"{pointer}/image_url/url")


def _video_reference(content: VideoContent, pointer: str, frames: ProcessorOptions) -> MediaReference:
    video_url = content.video_url
    if video_url is None:
        raise UnsupportedFeatureError(
            "A video without video_url", hint="Send its bytes or URL again; a uuid alone is not enough", param=pointer
        )
    url, end = (video_url, "") if isinstance(video_url, str) else (video_url.url, "/url")
    return MediaReference("video", url, f"{pointer}/video_url{end}", fps=frames.fps, num_frames=frames.num_frames)


def _frames(request: ChatCompletionRequest) -> ProcessorOptions | None:
    """Which frames of videos are meant. Raises `RequestError` for what else a processor could be told."""
    written = request.mm_processor_kwargs
    if not written:
        return None
    param = "/mm_processor_kwargs"
    if other := sorted(set(written) - set(ProcessorOptions.__struct_fields__)):
        raise UnsupportedFeatureError(
            f"'{other[0]}' in mm_processor_kwargs is not supported",
            hint="Only fps and num_frames of videos are; otherwise the model's own settings are used",
            param=param,
        )
    try:
        options = msgspec.convert(written, ProcessorOptions)
    except msgspec.ValidationError as error:
        fault = request_fault(error)
        fault.param = param + (fault.param or "")
        raise fault from error
    if options.fps is not None and options.num_frames is not None:
        raise InvalidRequestError("fps and num_frames exclude each other", hint="Send one of them", param=param)
    return options


def _role(message: ChatMessage, pointer: str) -> str:
    if message.role in _TOOL_ROLES:
        raise UnsupportedFeatureError(
            f"Messages of role '{message.role}' are not supported",
            hint="Put the tool's result into a user message",
            param=f"{pointer}/role",
        )
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequestError("Unknown role", hint=f"Known: {', '.join(_ROLES)}", param=f"{pointer}/role")
    return role


def _max_tokens(request: ChatCompletionRequest) -> int | None:
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequestError(
            f"max_tokens {old} and max_completion_tokens {new} differ",
            hint="Send only max_completion_tokens",
            param="/max_tokens",
        )
    return old if new is None else new


def _num_top_logprobs(request: ChatCompletionRequest) -> int | None:
    if not request.logprobs:
        if request.top_logprobs:
            raise InvalidRequestError(
                "top_logprobs without logprobs", hint="Set logprobs to true", param="/top_logprobs"
            )
        return None
    return request.top_logprobs or 0


def _continues(request: ChatCompletionRequest) -> bool:
    continues = bool(request.continue_final_message)
    if continues and request.messages[-1].role != "assistant":
        raise InvalidRequestError(
            "continue_final_message without an assistant message at the end", param="/continue_final_message"
        )
    if request.add_generation_prompt is not None and request.add_generation_prompt == continues:
        raise UnsupportedFeatureError(
            "add_generation_prompt must be the opposite of continue_final_message",
            hint="Send only continue_final_message",
            param="/add_generation_prompt",
        )
    return continues
