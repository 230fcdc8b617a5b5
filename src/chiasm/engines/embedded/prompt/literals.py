"""Keep special tokens that a user typed from becoming special.

A caller's text passes `hide` before it meets the chat template; the rendered whole then passes `encode`. What the
template wrote becomes special tokens, what the caller wrote becomes plain text, even if it spells `<|im_end|>` or
completes such a spelling together with its neighbours. Text that spells none takes the tokenizer's ordinary path.
"""

import json
import re
import secrets
import threading
from typing import Any

from tokenizers import Tokenizer

# Marks consist of Unicode noncharacters only: no template trims them and no normaliser rewrites them.
_DIGITS = {ord(digit): 0xFDD0 + value for value, digit in enumerate("0123456789abcdef")}
_OPEN, _CLOSE = "\ufdee", "\ufdef"


class LiteralGuard:
    """Guards one set of tokens of one tokenizer. Thread-safe."""

    def __init__(self, backend: Tokenizer, guarded: dict[int, str]) -> None:
        """`guarded` is id to text; the ids must be added tokens of `backend`."""
        self._backend = backend
        self._guarded = guarded
        self._literals = sorted(guarded.values(), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._literals)) or r"(?!)")
        self._beginnings = {literal[:end] for literal in self._literals for end in range(1, len(literal))}
        self._endings = {literal[begin:] for literal in self._literals for begin in range(1, len(literal))}
        self._max_part_chars = max(map(len, self._literals), default=1) - 1
        # Nobody can type a mark without knowing the nonce.
        self._mark_begin = _OPEN + secrets.token_hex(8).translate(_DIGITS)
        self._seam = self._mark("f", 0)
        self._hidden = {literal: self._mark("0", i) for i, literal in enumerate(self._literals)}
        self._special = {literal: self._mark("1", i) for i, literal in enumerate(self._literals)}
        self._shown = {mark: literal for literal, mark in self._hidden.items()} | {self._seam: ""}
        self._mark_pattern = re.compile(f"{self._mark_begin}[^{_CLOSE}]*{_CLOSE}")
        self._lock = threading.Lock()
        self._renamed: tuple[Tokenizer, dict[int, int]] | None = None

    def hide(self, text: str) -> str:
        """The text with every guarded literal, and every end that could become part of one, marked."""
        hidden = self._pattern.sub(lambda match: self._hidden[match[0]], text)
        core = hidden.strip()
        before, after = hidden[: len(hidden) - len(hidden.lstrip())], hidden[len(hidden.rstrip()) :]
        if not core:
            return hidden
        if any(core[:size] in self._endings for size in self._edge_sizes(core)):
            core = self._seam + core
        if any(core[-size:] in self._beginnings for size in self._edge_sizes(core)):
            core += self._seam
        return before + core + after

    def encode(self, rendered: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of a text that contains hidden ones; literals outside them become the guarded tokens."""
        if self._mark_begin not in rendered:
            ids: list[int] = self._backend.encode(rendered, add_special_tokens=add_special_tokens).ids
            if not self._has_strays(rendered, ids):
                return ids
        tokenizer, original_ids = self._renamed_tokenizer()
        marked = self._pattern.sub(lambda match: self._special[match[0]], rendered)
        text = self._mark_pattern.sub(lambda match: self._shown.get(match[0], match[0]), marked)
        encoded = tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return [original_ids.get(token_id, token_id) for token_id in encoded.ids]

    def _has_strays(self, rendered: str, ids: list[int]) -> bool:
        """Whether a normaliser made guarded tokens of other spellings, such as full-width brackets."""
        num_spelled = sum(1 for _ in self._pattern.finditer(rendered))
        return sum(map(self._guarded.__contains__, ids)) > num_spelled

    def _edge_sizes(self, text: str) -> range:
        return range(1, min(self._max_part_chars, len(text)) + 1)

    def _mark(self, kind: str, index: int) -> str:
        return self._mark_begin + f"{kind}{index:x}".translate(_DIGITS) + _CLOSE

    def _renamed_tokenizer(self) -> tuple[Tokenizer, dict[int, int]]:
        """The tokenizer with its guarded tokens spelled as marks, and which of its ids stand for which original."""
        with self._lock:
            if self._renamed is None:
                described = json.loads(self._backend.to_str())
                _rename(described, self._special)
                tokenizer = Tokenizer.from_str(json.dumps(described))
                ids = ((tokenizer.token_to_id(self._special[text]), old) for old, text in self._guarded.items())
                self._renamed = tokenizer, {new: old for new, old in ids if new is not None}
            return self._renamed


def _rename(described: dict[str, Any], names: dict[str, str]) -> None:
    """Respell tokens in a tokenizer.json: among the added tokens and wherever the model itself names them."""
    for token in described["added_tokens"]:
        if token["content"] in names:
            token |= {"content": names[token["content"]], "normalized": False}
    model = described["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(text, text): token_id for text, token_id in vocabulary.items()}
    else:
        model["vocab"] = [[names.get(text, text), score] for text, score in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
