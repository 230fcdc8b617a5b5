"""A model's chat template, rendered in transformers' sandbox with bounds on size and time."""

import secrets
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import _compile_jinja_template

from chiasm.engines.embedded.prompt.tokenizer import ModelTokenizer
from chiasm.errors import ChiasmError, ContextLengthError, DeadlineExceededError, EngineStartError, InvalidRequestError
from chiasm.media.prepare.model_files import read_json

MAX_RENDERED_CHARS = 4_000_000
_RENDER_TIMEOUT_S = 5.0
# What a template's own operations raise when a message is not as it expects.
_TEMPLATE_FAULTS = (TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)

ChatMessage = Mapping[str, Any]
"""`role` and `content`, as templates expect them: a string, or a list of parts."""


class ChatTemplate:
    """One compiled template. Thread-safe."""

    def __init__(self, source: str, variables: Mapping[str, Any]) -> None:
        """`variables` are the special tokens that templates name. Raises `EngineStartError` for a broken template."""
        try:
            self._template = _compile_jinja_template(source)
        except TemplateError as error:
            raise EngineStartError(f"The chat template does not compile: {error}") from error
        self._variables = dict(variables)
        self._keeps: dict[tuple[str, bool], bool] = {}

    def render(self, messages: Sequence[ChatMessage], *, continue_final_message: bool = False) -> str:
        """The conversation as text, with the opening of the answer unless the final message is to be continued.

        Raises:
            InvalidRequestError: The template refuses the conversation; the message is the template's own.
            ContextLengthError: The text is beyond any context.
            DeadlineExceededError: The template takes too long.
        """
        if not continue_final_message:
            return self._render(messages, add_generation_prompt=True)
        tag = f"final-{secrets.token_hex(16)}"
        text = self._render(_tagged(messages, tag + " "), add_generation_prompt=False)
        before, found, after = text.rpartition(tag)
        if not found:
            raise InvalidRequestError(
                "The chat template drops the final message, so it cannot be continued", param="/messages"
            )
        # A template that trims took the tag's space away, and would have trimmed the message too.
        return before if after.startswith(" ") else before.rstrip()

    def keeps_text(self, role: str, *, as_parts: bool) -> bool:
        """Whether text of this role comes out of the template when given as a string, or as a list of parts.

        Templates that know only one of the two drop the other without a word, or print its Python form.
        """
        known = self._keeps.get((role, as_parts))
        if known is None:
            known = self._keeps[role, as_parts] = self._probe(role, as_parts=as_parts)
        return known

    def _probe(self, role: str, *, as_parts: bool) -> bool:
        before, after = {"system": ("", "user"), "user": ("", ""), "assistant": ("user", "")}[role]
        texts = [(name, text) for name, text in ((before, "a"), (role, "probe"), (after, "b")) if name]
        messages = [
            {"role": name, "content": [{"type": "text", "text": text}] if as_parts else text} for name, text in texts
        ]
        try:
            text = self._render(messages, add_generation_prompt=False)
        except ChiasmError:
            return False
        return "probe" in text and "'text'" not in text

    def _render(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool) -> str:
        deadline_s = time.monotonic() + _RENDER_TIMEOUT_S
        pieces: list[str] = []
        num_chars = 0
        try:
            for piece in self._template.generate(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._variables,
            ):
                pieces.append(piece)
                num_chars += len(piece)
                if num_chars > MAX_RENDERED_CHARS:
                    raise ContextLengthError(f"The rendered prompt has more than {MAX_RENDERED_CHARS} characters")
                if time.monotonic() > deadline_s:
                    raise DeadlineExceededError(f"The chat template took longer than {_RENDER_TIMEOUT_S:g} s")
        except _TEMPLATE_FAULTS as error:
            raise _refused(error) from error
        return "".join(pieces)


def read_chat_template(tokenizer: ModelTokenizer) -> ChatTemplate | None:
    """The template from chat_template.jinja, chat_template.json or tokenizer_config.json, in this order; else None."""
    source = tokenizer.hf.chat_template
    directory = tokenizer.directory
    legacy = directory / "chat_template.json"
    if not (directory / "chat_template.jinja").is_file() and (written := read_json(legacy)) is not None:
        source = written.get("chat_template", source)
    if isinstance(source, dict):
        source = source.get("default")
    if not isinstance(source, str | None):
        raise EngineStartError(f"The chat template of {directory.name} is a {type(source).__name__}, not a text")
    return None if source is None else ChatTemplate(source, tokenizer.hf.special_tokens_map)


def _tagged(messages: Sequence[ChatMessage], tag: str) -> list[dict[str, Any]]:
    """A copy whose final message's last text ends in the tag."""
    copied = [dict(message) for message in messages]
    final = copied[-1]
    if isinstance(final["content"], str):
        final["content"] += tag
        return copied
    final["content"] = deepcopy(final["content"])
    text = next((part for part in reversed(final["content"]) if part["type"] == "text"), None)
    if text is None:
        raise InvalidRequestError("The final message has no text that could be continued", param="/messages")
    text["text"] += tag
    return copied


def _refused(error: Exception) -> InvalidRequestError:
    # Only `raise_exception` in the template raises the base class itself; other messages may quote the caller's text.
    stated = str(error) if type(error) is TemplateError else f"it fails with {type(error).__name__}"
    return InvalidRequestError(
        f"The model's chat template does not accept the conversation: {stated}",
        hint="Check the order and the roles of the messages",
        param="/messages",
    )
