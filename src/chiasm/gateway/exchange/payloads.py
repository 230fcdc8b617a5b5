"""Large data URLs, taken out of a body before it is parsed.

Parsing JSON copies every string. A megabyte of base64 is found faster than it is copied: its payload is cut out as a
view of the body, a short mark stands for it while the rest is parsed, and the view is decoded where the bytes are
needed. What the body means stays the same, because only characters that cannot end or escape a string are cut.
"""

import secrets
from collections.abc import Iterable

import msgspec

from chiasm.media.reference import MediaReference

MIN_CUT_BYTES = 16 * 1024
"""Shorter payloads are parsed as any other string."""

_START = b'"data:'
_BASE64 = b";base64,"
_MAX_HEAD_BYTES = 160
_MARK = f"@{secrets.token_hex(16)}-"  # no payload holds an '@', and no caller can guess the rest


class CutBody:
    """A body without its large payloads. Views of the original live as long as this or a reference from `restored`."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._payloads: list[memoryview] = []
        self.num_cuts = 0
        self.rest = body if len(body) < MIN_CUT_BYTES else self._cut()

    def restored(self, references: Iterable[MediaReference]) -> tuple[MediaReference, ...] | None:
        """Return the references of the parsed rest with the payloads that belong to them.

        None when a payload was cut that belongs to none, such as one in a text: the body has to be parsed whole.
        """
        restored = tuple(self._restored(reference) for reference in references)
        num_restored = sum(reference.payload is not None for reference in restored)
        return restored if num_restored == self.num_cuts else None

    def _cut(self) -> bytes:
        body, end = self._body, 0
        view, parts = memoryview(body), list[bytes | memoryview]()
        position = body.find(_START)
        while position >= 0:
            found = body.find(_BASE64, position, position + _MAX_HEAD_BYTES)
            first = found + len(_BASE64)
            quote = body.find(b'"', max(first, position + 1))
            if quote < 0:
                break
            if found >= 0 and self._is_payload(position, first, quote):
                parts += [view[end:first], f"{_MARK}{self._index(view[first:quote])}".encode()]
                end = quote
                self.num_cuts += 1
            position = body.find(_START, quote)
        return b"".join([*parts, view[end:]]) if parts else body

    def _is_payload(self, position: int, first: int, quote: int) -> bool:
        """Whether the string that begins at `position` ends at `quote` and is large; with an escape nothing is sure."""
        body = self._body
        if quote - first < MIN_CUT_BYTES or body[position - 1 : position] == b"\\":
            return False
        return body.find(b'"', position + 1, first) < 0 and body.find(b"\\", position, quote) < 0

    def _index(self, payload: memoryview) -> int:
        """The payload's number; the same payload twice has the same one, as the same URL twice is one picture."""
        for index, known in enumerate(self._payloads):
            if len(known) == len(payload) and known[-64:] == payload[-64:] and bytes(known) == bytes(payload):
                return index
        self._payloads.append(payload)
        return len(self._payloads) - 1

    def _restored(self, reference: MediaReference) -> MediaReference:
        _, mark, index = reference.url.partition(_MARK)
        return msgspec.structs.replace(reference, payload=self._payloads[int(index)]) if mark else reference
