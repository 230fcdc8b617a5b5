"""The bytes each token stands for, by the kind of decoder the tokenizer has."""

import json
from enum import Enum
from typing import Any

from tokenizers import Tokenizer


class PieceStyle(Enum):
    """How a token's text follows from the token.

    BYTE_LEVEL: tokens are bytes, written in GPT-2's printable alphabet; any concatenation is the text.
    BYTE_FALLBACK: tokens are text with "▁" for a space, or single bytes `<0xNN>`; sentencepiece models.
    CONTEXT: the text of a token depends on its neighbours; only the tokenizer's own decoder knows.
    """

    BYTE_LEVEL = "byte_level"
    BYTE_FALLBACK = "byte_fallback"
    CONTEXT = "context"


class TokenPieces(dict[int, bytes]):
    """Token id to bytes; entries appear on first use. One per model, shared by all streams and threads.

    Ids outside the vocabulary are empty, as they are when decoded.

    Attributes:
        strips_space: The decoder removes one leading space from the whole text.
        byte_values: Id to value of the single-byte tokens; empty unless the style is BYTE_FALLBACK.
    """

    def __init__(self, backend: Tokenizer) -> None:
        super().__init__()
        self._backend = backend
        self.style, self.strips_space = _style(backend)
        self.byte_values: dict[int, int] = {}
        if self.style is PieceStyle.BYTE_FALLBACK:
            found = ((backend.token_to_id(f"<0x{value:02X}>"), value) for value in range(256))
            self.byte_values = {token_id: value for token_id, value in found if token_id is not None}

    def __missing__(self, token_id: int) -> bytes:
        piece = self[token_id] = self._compute(token_id)
        return piece

    def _compute(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self.style is PieceStyle.BYTE_LEVEL:
            values = [_BYTE_OF_CHARACTER.get(character) for character in token]
            # A token with a character outside the alphabet (an added token) stands for itself.
            return token.encode() if None in values else bytes(value for value in values if value is not None)
        if self.style is PieceStyle.BYTE_FALLBACK:
            value = self.byte_values.get(token_id)
            return token.replace("▁", " ").encode() if value is None else bytes([value])
        return self._backend.decode([token_id], skip_special_tokens=False).encode()


def _byte_alphabet() -> dict[str, int]:
    """Character to byte: printable Latin-1 stands for itself, the other bytes take the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printable]
    return {chr(v): v for v in printable} | {chr(0x100 + index): v for index, v in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_alphabet()

_REPLACE_SPACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
_STRIP_SPACE = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
_FALLBACK_STEPS: list[dict[str, Any]] = [_REPLACE_SPACE, {"type": "ByteFallback"}, {"type": "Fuse"}]


def _style(backend: Tokenizer) -> tuple[PieceStyle, bool]:
    decoder = backend.decoder
    if decoder is None:
        return PieceStyle.CONTEXT, False
    described = json.loads(decoder.__getstate__())
    steps = described["decoders"] if described["type"] == "Sequence" else [described]
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return PieceStyle.BYTE_LEVEL, False
    if steps == _FALLBACK_STEPS:
        return PieceStyle.BYTE_FALLBACK, False
    if steps == [*_FALLBACK_STEPS, _STRIP_SPACE]:
        return PieceStyle.BYTE_FALLBACK, True
    return PieceStyle.CONTEXT, False
