"""From a prompt to token ids with every picture in its place."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chiasm.engines.embedded.families.base import Family, PlacedImage
from chiasm.engines.embedded.prompt.literals import LiteralGuard
from chiasm.engines.embedded.prompt.template import MAX_RENDERED_CHARS, ChatTemplate, read_chat_template
from chiasm.engines.embedded.prompt.tokenizer import ModelTokenizer
from chiasm.errors import (
    ContextLengthError,
    EngineStartError,
    InvalidRequestError,
    UnsupportedFeatureError,
    UnsupportedMediaError,
)
from chiasm.media.prepare.base import ImagePlan
from chiasm.protocol.generation import ChatPrompt, ItemPart, Message, TextPart, TextPrompt, TokensPrompt
from chiasm.protocol.media import MediaKind


@dataclass(frozen=True)
class RenderedPrompt:
    """What the model reads.

    Attributes:
        token_ids: Placeholders are expanded.
        images: Where pictures stand, in prompt order.
        items: For each of `images`, the request's item it shows; an item may stand in several places.
    """

    token_ids: list[int]
    images: list[PlacedImage]
    items: list[int]


class PromptRenderer:
    """Renders prompts for one model directory. Thread-safe; needs no weights.

    Attributes:
        tokenizer: The model's tokenizer, shared with output and grammars.
    """

    def __init__(self, directory: Path, family: Family) -> None:
        """Read tokenizer and chat template. Raises `EngineStartError` when they are unusable."""
        self.tokenizer = ModelTokenizer(directory)
        self._family = family
        self._template = read_chat_template(self.tokenizer)
        placeholder = self._placeholder(family.image_token_id) | self._video_placeholder(family.video_token_id)
        self._placeholder_ids = set(placeholder)
        # In a chat no special token is the caller's to write; in a raw completion all are, but for the placeholder.
        self._chat_guard = LiteralGuard(self.tokenizer.backend, self.tokenizer.special_tokens | placeholder)
        self._text_guard = LiteralGuard(self.tokenizer.backend, placeholder)

    def render(self, prompt: ChatPrompt | TextPrompt | TokensPrompt, plans: Sequence[ImagePlan]) -> RenderedPrompt:
        """Tokenise a prompt; `plans` has one entry per item of the request.

        Raises:
            InvalidRequestError: Empty, out of range, refused by the template, or pictures that it does not place.
            UnsupportedFeatureError: A chat for a model without a chat template, or parts it cannot express.
            UnsupportedMediaError: Pictures for a model that takes none.
            ContextLengthError: More text than any context holds.
        """
        if isinstance(prompt, ChatPrompt):
            rendered = self._chat(prompt, plans)
        elif plans:
            raise InvalidRequestError("Pictures need a chat; a raw prompt has no place for them", param="/prompt")
        elif isinstance(prompt, TextPrompt):
            _check_size(len(prompt.text))
            token_ids = self._text_guard.encode(self._text_guard.hide(prompt.text), add_special_tokens=True)
            rendered = RenderedPrompt(token_ids, [], [])
        else:
            rendered = RenderedPrompt(self._checked(prompt.token_ids), [], [])
        if not rendered.token_ids:
            raise InvalidRequestError("The prompt is empty", hint="Send at least one token")
        return rendered

    def _chat(self, prompt: ChatPrompt, plans: Sequence[ImagePlan]) -> RenderedPrompt:
        template = self._template
        if template is None:
            raise UnsupportedFeatureError(
                "The model has no chat template",
                hint="Use the completions API, or add chat_template.jinja to the model",
            )
        if not prompt.messages:
            raise InvalidRequestError("The conversation has no messages", param="/messages")
        _check_size(sum(len(p.text) for m in prompt.messages for p in m.parts if isinstance(p, TextPart)))
        items = self._placed_items(prompt, plans)
        kinds = [plan.kind for plan in plans]
        messages = [self._message(template, message, at, kinds) for at, message in enumerate(prompt.messages)]
        text = template.render(messages, continue_final_message=prompt.continue_final_message)
        return self._place(self._chat_guard.encode(text), items, plans)

    def _message(self, template: ChatTemplate, message: Message, at: int, kinds: Sequence[MediaKind]) -> dict[str, Any]:
        """One message as templates expect it: a string where that says it all, else a list of parts."""
        texts = [self._chat_guard.hide(part.text) for part in message.parts if isinstance(part, TextPart)]
        has_items = len(texts) < len(message.parts)
        takes_string = template.keeps_text(message.role, as_parts=False)
        takes_parts = template.keeps_text(message.role, as_parts=True)
        if has_items and not takes_parts:
            raise UnsupportedFeatureError(
                f"The model's chat template takes no pictures in {message.role} messages",
                param=f"/messages/{at}/content",
            )
        if takes_parts and (has_items or len(texts) > 1 or not takes_string):
            hidden = iter(texts)
            content = [
                {"type": "text", "text": next(hidden)} if isinstance(part, TextPart) else {"type": kinds[part.item]}
                for part in message.parts
            ]
            return {"role": message.role, "content": content}
        return {"role": message.role, "content": "\n".join(texts)}

    def _placed_items(self, prompt: ChatPrompt, plans: Sequence[ImagePlan]) -> list[int]:
        """Items in the order of their places; every place has an item and every item a place."""
        items = [part.item for message in prompt.messages for part in message.parts if isinstance(part, ItemPart)]
        if items and self._family.image_token_id is None:
            raise UnsupportedMediaError("The model takes no pictures", param="/messages", item=items[0])
        if set(items) != set(range(len(plans))):
            raise InvalidRequestError(
                f"The request has {len(plans)} items and its messages name {sorted(set(items))}", param="/messages"
            )
        videos = [item for item in items if plans[item].kind == "video"]
        if videos and self._family.video_token_id not in self._placeholder_ids:
            raise UnsupportedMediaError("The model takes no videos", param="/messages", item=videos[0])
        return items

    def _place(self, token_ids: list[int], items: list[int], plans: Sequence[ImagePlan]) -> RenderedPrompt:
        """Bind the i-th placeholder to the i-th place and expand it."""
        places = [at for at, token_id in enumerate(token_ids) if token_id in self._placeholder_ids]
        if [token_ids[at] for at in places] != [self._placeholder_of(plans[item]) for item in items]:
            what = f"placed {len(places)} of {len(items)} pictures and videos"
            if len(places) == len(items):
                what = "has no place for videos, or none for pictures"
            raise InvalidRequestError(
                f"The model's chat template {what}",
                hint="Put pictures and videos into user messages",
                param="/messages",
            )
        placed: list[int] = []
        images: list[PlacedImage] = []
        start = 0
        for at, item in zip(places, items, strict=True):
            placed += token_ids[start:at]
            expanded = self._family.expand(plans[item])
            runs = () if plans[item].kind == "image" else _runs(expanded, token_ids[at], len(placed))
            images.append(PlacedImage(plans[item], len(placed), len(expanded), runs))
            placed += expanded
            start = at + 1
        return RenderedPrompt(placed + token_ids[start:], images, items)

    def _placeholder_of(self, plan: ImagePlan) -> int | None:
        return self._family.image_token_id if plan.kind == "image" else self._family.video_token_id

    def _checked(self, token_ids: Sequence[int]) -> list[int]:
        for at, token_id in enumerate(token_ids):
            if not 0 <= token_id < self.tokenizer.vocab_size:
                raise InvalidRequestError(
                    f"Token {token_id} is not in the vocabulary of {self.tokenizer.vocab_size} tokens",
                    hint="Use ids of the served model's tokenizer",
                    param=f"/prompt/{at}",
                )
        return list(token_ids)

    def _video_placeholder(self, token_id: int | None) -> dict[int, str]:
        """Empty where the tokenizer knows no such token, as with models whose makers left videos out."""
        token = None if token_id is None else self.tokenizer.backend.get_added_tokens_decoder().get(token_id)
        return {} if token_id is None or token is None else {token_id: token.content}

    def _placeholder(self, token_id: int | None) -> dict[int, str]:
        if token_id is None:
            return {}
        token = self.tokenizer.backend.get_added_tokens_decoder().get(token_id)
        if token is None:
            raise EngineStartError(
                f"The tokenizer of {self.tokenizer.directory.name} has no added token {token_id} for pictures",
                hint="tokenizer.json and config.json must be those of the same model",
            )
        return {token_id: token.content}


def _check_size(num_chars: int) -> None:
    if num_chars > MAX_RENDERED_CHARS:
        raise ContextLengthError(f"The prompt has {num_chars} characters; the limit is {MAX_RENDERED_CHARS}")


def _runs(expanded: Sequence[int], placeholder_id: int, offset: int) -> tuple[int, ...]:
    """Where runs of the placeholder begin in the prompt."""
    before = (None, *expanded[:-1])
    return tuple(
        offset + at
        for at, (last, one) in enumerate(zip(before, expanded, strict=True))
        if one == placeholder_id != last
    )
