"""Traces: requests with the times at which they once came."""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from chiasm.bench.workload.classes import RequestClass, checked
from chiasm.errors import InvalidSettingError


class TraceLine(msgspec.Struct, frozen=True, kw_only=True):
    """One request: `at_s` from the trace's own zero, or `timestamp` in milliseconds; and its class or what differs from
    it.

    The names with `_length` are those of published traces. Other fields are ignored.
    """

    at_s: Annotated[float, Meta(ge=0)] | None = None
    timestamp: Annotated[float, Meta(ge=0)] | None = None
    request_class: str | None = msgspec.field(name="class", default=None)
    text_tokens: Annotated[int, Meta(ge=1)] | None = None
    input_length: Annotated[int, Meta(ge=1)] | None = None
    output_tokens: Annotated[int, Meta(ge=1)] | None = None
    output_length: Annotated[int, Meta(ge=1)] | None = None
    images: Annotated[int, Meta(ge=0)] | None = None

    @property
    def start_s(self) -> float | None:
        """When it came."""
        return self.timestamp / 1000 if self.at_s is None and self.timestamp is not None else self.at_s


def read_trace(path: Path, classes: tuple[RequestClass, ...]) -> list[tuple[float, RequestClass]]:
    """Start times from 0 and classes, in order of time.

    Raises:
        InvalidSettingError: The file cannot be read; the message names the line.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InvalidSettingError(f"'{path}' cannot be read: {error.strerror}") from error
    decoder = msgspec.json.Decoder(TraceLine)
    known = {one.name: one for one in classes}
    requests = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise InvalidSettingError(f"Line {number} of '{path}': {error}") from error
        if entry.start_s is None:
            raise InvalidSettingError(f"Line {number} of '{path}' has neither at_s nor timestamp")
        requests.append((entry.start_s, _class_of(entry, known, classes[0], f"Line {number} of '{path}'")))
    if not requests:
        raise InvalidSettingError(f"'{path}' has no requests")
    requests.sort(key=_start)
    first_s = requests[0][0]
    return [(at_s - first_s, kind) for at_s, kind in requests]


def _class_of(line: TraceLine, known: dict[str, RequestClass], default: RequestClass, where: str) -> RequestClass:
    if line.request_class is not None and line.request_class not in known:
        raise InvalidSettingError(f"{where} has class '{line.request_class}'", hint=f"Known: {', '.join(known)}")
    base = known.get(line.request_class or "", default)
    given = {
        "text_tokens": line.text_tokens or line.input_length,
        "output_tokens": line.output_tokens or line.output_length,
        "images": line.images,
    }
    changed = msgspec.structs.replace(base, **{name: value for name, value in given.items() if value is not None})
    return checked([changed])[0]


def _start(request: tuple[float, RequestClass]) -> float:
    return request[0]
