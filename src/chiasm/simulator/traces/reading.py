"""Files of lines to requests. The first line says which form a file has; all others have it too."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from chiasm.errors import InvalidSettingError
from chiasm.simulator.traces.lines import AiperfLine, ChiasmLine, MooncakeLine, TracePicture
from chiasm.simulator.traffic import Picture, Request

MAX_TRACE_BYTES = 2 * 2**30
"""Of memory. A line of sixty bytes may ask for ten thousand pictures, so the size of the file says nothing."""
MAX_LINE_BYTES = 4 * 2**20
MOONCAKE_BLOCK_TOKENS = 512
_REQUEST_BYTES, _PICTURE_BYTES, _BLOCK_BYTES = 600, 300, 100
"""Measured, and rounded up: a request without its pictures and blocks, and one of these, without their names."""

_Convert = Callable[[Any, int, TracePicture], Request]


def read_requests(path: Path, usual: TracePicture) -> list[Request]:
    """The requests of a trace in the order in which they come, the first at 0.

    Args:
        path: A file of `chiasm trace export`, of Mooncake's form, or AIPerf's `profile_export.jsonl`.
        usual: The size of pictures where the trace only counts them.

    Raises:
        InvalidSettingError: It cannot be read or is none of these; the message names the line.
    """
    requests: list[Request] = []
    num_bytes = 0
    decode: Callable[[bytes], Any] | None = None
    for number, line in _lines(path):
        where = f"Line {number} of '{path}'"
        try:
            if decode is None:
                kind = _kind_of(line, where)
                decode, convert = msgspec.json.Decoder(kind).decode, _CONVERT[kind]
            requests.append(convert(decode(line), len(requests), usual))
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise InvalidSettingError(f"{where} is not one of a trace: {error}") from error
        num_bytes += _bytes(requests[-1])
        if num_bytes > MAX_TRACE_BYTES:
            raise InvalidSettingError(
                f"{where}: the requests up to here take more than {MAX_TRACE_BYTES / 2**30:g} GiB of memory",
                hint="Take a part of the trace.",
            )
    if not requests:
        raise InvalidSettingError(f"'{path}' has no requests")
    return _from_zero(requests)


def _bytes(one: Request) -> int:
    """About what it takes of memory, with the copies that are made of it."""
    names = len(one.class_name) + len(one.prefix) + sum(len(picture.identity) for picture in one.pictures)
    return _REQUEST_BYTES + names + _PICTURE_BYTES * len(one.pictures) + _BLOCK_BYTES * len(one.blocks)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise InvalidSettingError(f"Line {number} of '{path}' is longer than {MAX_LINE_BYTES} bytes")
                if line.strip():
                    yield number, line
    except OSError as error:
        raise InvalidSettingError(f"'{path}' cannot be read: {error.strerror}") from error


def _kind_of(line: bytes, where: str) -> type[msgspec.Struct]:
    fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    for name, kind in (("at_s", ChiasmLine), ("timestamp", MooncakeLine), ("metadata", AiperfLine)):
        if name in fields:
            return kind
    raise InvalidSettingError(
        f"{where} has none of at_s, timestamp and metadata",
        hint="Traces are made by `chiasm trace export`, of Mooncake's form, or AIPerf's profile_export.jsonl.",
    )


def _of_chiasm(line: ChiasmLine, number: int, _: TracePicture) -> Request:
    pictures = tuple(
        Picture(one.key or f"{number}.{place}", one.pixels, one.tokens) for place, one in enumerate(line.pictures)
    )
    return Request(
        number=number,
        at_s=line.at_s,
        class_name=line.request_class,
        text_tokens=max(line.text_tokens, 1),
        output_tokens=max(line.output_tokens, 1),
        pictures=pictures,
        prefix=" ".join(one.identity for one in pictures) if line.pictures and line.pictures[0].key else "",
    )


def _of_mooncake(line: MooncakeLine, number: int, usual: TracePicture) -> Request:
    return Request(
        number=number,
        at_s=line.timestamp / 1e3,
        class_name="images" if line.images else "text",
        text_tokens=line.input_length,
        output_tokens=max(line.output_length, 1),
        pictures=tuple(Picture(f"{number}.{place}", usual.pixels, usual.tokens) for place in range(line.images)),
        blocks=tuple(f"block-{one}" for one in line.hash_ids),
        block_tokens=MOONCAKE_BLOCK_TOKENS,
    )


def _of_aiperf(line: AiperfLine, number: int, _: TracePicture) -> Request:
    return Request(
        number=number,
        at_s=line.metadata.request_start_ns / 1e9,
        class_name="all",
        text_tokens=max(int(line.metrics.input_sequence_length.value), 1),
        output_tokens=max(int(line.metrics.output_sequence_length.value), 1),
    )


_CONVERT: dict[type[msgspec.Struct], _Convert] = {
    ChiasmLine: _of_chiasm,
    MooncakeLine: _of_mooncake,
    AiperfLine: _of_aiperf,
}


def _from_zero(requests: list[Request]) -> list[Request]:
    requests.sort(key=lambda one: one.at_s)
    first_s = requests[0].at_s
    return [msgspec.structs.replace(one, number=number, at_s=one.at_s - first_s) for number, one in enumerate(requests)]
