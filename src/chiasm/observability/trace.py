"""Whose trace a request belongs to, as W3C's `traceparent` header says it, from the caller on to the workers."""

import random
import re
from contextvars import ContextVar
from typing import NamedTuple

TRACEPARENT = b"traceparent"
_FORM = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_KNOWN_VERSION, _NO_VERSION = b"00", b"ff"
_SAMPLED = 1

outgoing: ContextVar[bytes] = ContextVar("outgoing", default=b"")
"""The header that calls to workers made for the request under way carry; empty for none."""


class TraceContext(NamedTuple):
    """A request's own span and its place. Ids are lower-case hexadecimal; `parent_id` is empty for the first span."""

    trace_id: str
    parent_id: str
    span_id: str
    is_sampled: bool

    @property
    def header(self) -> bytes:
        """What a worker is told: its spans are below this one."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}".encode()


def context_of(header: bytes, share: float) -> TraceContext:
    """Continue the caller's trace, with the caller's decision, or begin one that is recorded with probability `share`.

    A header that is not one begins a trace, as the standard wants it.
    """
    found = parse(header)
    if found is None:
        return TraceContext(_hex(16), "", new_id(), random.random() < share)  # noqa: S311 - nothing depends on it
    trace_id, parent_id, flags = found
    return TraceContext(trace_id, parent_id, new_id(), bool(flags & _SAMPLED))


def parse(header: bytes) -> tuple[str, str, int] | None:
    """Trace, parent and flags of a `traceparent`; None when it is not one."""
    match = _FORM.fullmatch(header)
    if match is None:
        return None
    version, trace_id, parent_id, flags, more = match.groups()
    if (
        version == _NO_VERSION
        or (version == _KNOWN_VERSION and more)
        or not int(trace_id, 16)
        or not int(parent_id, 16)
    ):
        return None
    return trace_id.decode(), parent_id.decode(), int(flags, 16)


def new_id() -> str:
    """A span's id."""
    return _hex(8)


def _hex(num_bytes: int) -> str:
    number = random.getrandbits(8 * num_bytes) or 1
    return f"{number:0{2 * num_bytes}x}"
