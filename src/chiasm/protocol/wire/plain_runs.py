"""Runs of plain tokens in a stream, read together.

The events of a stream differ in little but text and token ids. What stands around these is learned from one event that
was parsed; a run of events with exactly the same around them is split instead of parsed, and gives one `TokenEvent`.
Whatever is not exactly so is left to the parser, so that the events are the same, joined.
"""

from itertools import chain

import msgspec

from chiasm.protocol.generation import TokenEvent

_ENCODE = msgspec.json.Encoder().encode
_TEXTS = msgspec.json.Decoder(list[str]).decode
_TOKEN_IDS = msgspec.json.Decoder(list[list[int]]).decode
_NAMED_IDS = b'"token_ids":['
_END = b"\n\n"


class PlainRuns:
    """Reads the runs of one stream whose events are like one that was parsed."""

    def __init__(self, choice: int, before: bytes, middle: bytes, after: bytes) -> None:
        self._choice = choice
        self._before = before
        self._middle = middle  # between text and token ids; empty when there are no ids
        self._after = after
        self._between = after + _END + before

    @classmethod
    def like(cls, block: bytes, event: TokenEvent) -> "PlainRuns | None":
        """What is around text and token ids in an event's block; None when that is not clear."""
        text = _ENCODE(event.text)
        if event.logprobs is not None or block.count(text) != 1:
            return None
        before, _, rest = block.partition(text)
        if not event.token_ids:
            return None if _NAMED_IDS in block else cls(event.choice, before + b'"', b"", b'"' + rest)
        start = rest.find(_NAMED_IDS) + len(_NAMED_IDS)
        token_ids = _ENCODE(event.token_ids)[1:-1]
        if start < len(_NAMED_IDS) or not rest.startswith(token_ids + b"]", start):
            return None
        return cls(event.choice, before + b'"', b'"' + rest[:start], rest[start + len(token_ids) :])

    def split(self, blocks: bytes) -> tuple[TokenEvent | None, bytes]:
        """The event that a run at the start of `blocks` comes to, and the blocks that are left to parse."""
        if not blocks.startswith(self._before):
            return None, blocks
        pieces = blocks[len(self._before) :].split(self._between)
        last, rest = pieces.pop(), b""
        if last.endswith(self._after) and _END not in last:
            pieces.append(last.removesuffix(self._after))
        else:
            rest = self._before + last
        event = self._event(pieces) if pieces else None
        return (None, blocks) if event is None else (event, rest)

    def _event(self, pieces: list[bytes]) -> TokenEvent | None:
        token_ids: tuple[int, ...] = ()
        try:
            if self._middle:
                cut = [piece.partition(self._middle) for piece in pieces]
                pieces = [text for text, _, _ in cut]
                ids = _TOKEN_IDS(b"[[" + b"],[".join([after for _, _, after in cut]) + b"]]")
                if len(ids) != len(pieces):
                    return None
                token_ids = tuple(chain.from_iterable(ids))
            texts = _TEXTS(b'["' + b'","'.join(pieces) + b'"]')
        except msgspec.DecodeError:
            return None
        return TokenEvent(self._choice, "".join(texts), token_ids) if len(texts) == len(pieces) else None
