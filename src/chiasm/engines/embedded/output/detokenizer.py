"""Token ids to text, one token at a time, never splitting a character.

All texts of a stream joined with `flush()` equal the tokenizer's `decode` of all ids, with one exception: in a run of
sentencepiece byte tokens that begins with whole characters and then breaks off, `decode` turns the whole run into
U+FFFD, while a stream has already sent the characters.
"""

import codecs
from collections.abc import Collection
from typing import Protocol

from tokenizers import Tokenizer

from chiasm.engines.embedded.prompt.pieces import PieceStyle, TokenPieces

_REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """One sequence's state. Constant cost per token."""

    def push(self, token_id: int) -> str:
        """Text that is certain after this token; empty while a character is incomplete."""
        ...

    def flush(self) -> str:
        """What an incomplete end decodes to. Nothing may be pushed afterwards."""
        ...


def detokenizer_for(backend: Tokenizer, pieces: TokenPieces, skipped: Collection[int]) -> Detokenizer:
    """A fresh detokenizer of the kind the tokenizer needs; tokens in `skipped` give no text."""
    if pieces.style is PieceStyle.BYTE_LEVEL:
        return ByteLevelDetokenizer(pieces, skipped)
    if pieces.style is PieceStyle.BYTE_FALLBACK:
        return ByteFallbackDetokenizer(pieces, skipped)
    return WindowDetokenizer(backend, skipped)


class ByteLevelDetokenizer:
    """Tokens are bytes: an incremental UTF-8 decoder is all there is to it."""

    __slots__ = ("_decode", "_pieces", "_skipped")

    def __init__(self, pieces: TokenPieces, skipped: Collection[int]) -> None:
        self._pieces = pieces
        self._skipped = skipped
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def push(self, token_id: int) -> str:
        """See `Detokenizer`."""
        return "" if token_id in self._skipped else self._decode(self._pieces[token_id])

    def flush(self) -> str:
        """See `Detokenizer`."""
        return self._decode(b"", True)


class ByteFallbackDetokenizer:
    """Tokens are text, or single bytes that are collected until they form a character.

    A byte run that is no UTF-8 gives one U+FFFD per byte, as the tokenizers' decoder does.
    """

    __slots__ = ("_broken", "_byte_values", "_pieces", "_run", "_skipped", "_strip")

    def __init__(self, pieces: TokenPieces, skipped: Collection[int]) -> None:
        self._pieces = pieces
        self._byte_values = pieces.byte_values
        self._skipped = skipped
        self._strip = pieces.strips_space
        self._run = bytearray()
        self._broken = False

    def push(self, token_id: int) -> str:
        """See `Detokenizer`."""
        piece = b"" if token_id in self._skipped else self._pieces[token_id]
        if not piece:
            return ""
        text = self._push_byte(piece) if token_id in self._byte_values else self._end_run() + piece.decode()
        return self._strip_first(text) if self._strip else text

    def flush(self) -> str:
        """See `Detokenizer`."""
        text = self._end_run()
        return self._strip_first(text) if self._strip else text

    def _push_byte(self, piece: bytes) -> str:
        if self._broken:
            return _REPLACEMENT
        self._run += piece
        try:
            text = self._run.decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                return ""
            self._broken = True
            text = _REPLACEMENT * len(self._run)
        self._run.clear()
        return text

    def _end_run(self) -> str:
        text = _REPLACEMENT * len(self._run)
        self._run.clear()
        self._broken = False
        return text

    def _strip_first(self, text: str) -> str:
        if text:
            self._strip = False
        return text.removeprefix(" ")


class WindowDetokenizer:
    """Any decoder: decodes a small window that starts at a token already sent and sends what the window gained."""

    # A character has at most four bytes; a window that still ends in U+FFFD after this many tokens means it.
    _MAX_PENDING_TOKENS = 8

    def __init__(self, backend: Tokenizer, skipped: Collection[int]) -> None:
        self._backend = backend
        self._skipped = skipped
        self._window: list[int] = []
        self._num_sent = 0

    def push(self, token_id: int) -> str:
        """See `Detokenizer`."""
        if token_id in self._skipped:
            return ""
        self._window.append(token_id)
        return self._gained(must_send=len(self._window) - self._num_sent >= self._MAX_PENDING_TOKENS)

    def flush(self) -> str:
        """See `Detokenizer`."""
        return self._gained(must_send=True)

    def _gained(self, *, must_send: bool) -> str:
        sent = self._backend.decode(self._window[: self._num_sent], skip_special_tokens=False)
        text = self._backend.decode(self._window, skip_special_tokens=False)
        if not must_send and (len(text) <= len(sent) or text.endswith(_REPLACEMENT)):
            return ""
        del self._window[: self._num_sent]
        self._num_sent = len(self._window)
        return text[len(sent) :]
