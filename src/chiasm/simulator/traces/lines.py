"""Lines of trace files. Fields that are not named here are ignored; those that are have limits."""

from typing import Annotated

import msgspec
from msgspec import Meta

MAX_PICTURES = 10_000
_MAX_TOKENS = 100_000_000
_MAX_S = 1e9

Tokens = Annotated[int, Meta(ge=0, le=_MAX_TOKENS)]
Seconds = Annotated[float, Meta(ge=0, le=_MAX_S)]
Name = Annotated[str, Meta(max_length=128)]


class TracePicture(msgspec.Struct, frozen=True, kw_only=True):
    """A medium by size. The same `key` is the same content; without one, nobody brings it again."""

    key: Name = ""
    pixels: Annotated[int, Meta(ge=1, le=10**12)] = 448 * 448
    tokens: Annotated[int, Meta(ge=1, le=_MAX_TOKENS)] = 256


class ChiasmLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `chiasm trace export`. `text_tokens` are those of the prompt besides its pictures."""

    at_s: Seconds
    request_class: Name = msgspec.field(name="class", default="all")
    text_tokens: Tokens = 1
    output_tokens: Tokens = 1
    pictures: Annotated[tuple[TracePicture, ...], Meta(max_length=MAX_PICTURES)] = ()


class MooncakeLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of Mooncake's traces, which AIPerf replays: milliseconds, and hashes of the prompt's blocks of tokens.

    A hash stands for its block and all before it. `images` is how many pictures there are, of a size that the reader
    assumes; their tokens come on top.
    """

    timestamp: Annotated[float, Meta(ge=0, le=_MAX_S * 1e3)]
    input_length: Annotated[int, Meta(ge=1, le=_MAX_TOKENS)]
    output_length: Tokens = 1
    hash_ids: Annotated[tuple[int, ...], Meta(max_length=1_000_000)] = ()
    images: Annotated[int, Meta(ge=0, le=MAX_PICTURES)] = 0


class _Metadata(msgspec.Struct, frozen=True, kw_only=True):
    request_start_ns: Annotated[int, Meta(ge=0, le=2**63 - 1)]


class _Number(msgspec.Struct, frozen=True):
    value: Annotated[float, Meta(ge=0, le=_MAX_TOKENS)] = 0.0


class _Metrics(msgspec.Struct, frozen=True, kw_only=True):
    input_sequence_length: _Number = _Number(1.0)
    output_sequence_length: _Number = _Number(1.0)


class AiperfLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of AIPerf's `profile_export.jsonl`: what was sent and when. It does not say what pictures there were."""

    metadata: _Metadata
    metrics: _Metrics = _Metrics()
