"""A trace as traffic: its requests, and what they are like on average."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from chiasm.errors import InvalidSettingError
from chiasm.simulator.traces.lines import TracePicture
from chiasm.simulator.traces.reading import read_requests
from chiasm.simulator.traffic import Request, RequestClass, Traffic

_MIN_REQUESTS = 20


class Trace(NamedTuple):
    """Requests in the order in which they come, and traffic that is like them: rate, classes, means."""

    requests: tuple[Request, ...]
    likeness: Traffic

    def part(self, number: int, num_parts: int) -> tuple[Request, ...]:
        """One of so many equal parts of the requests, from its own zero on."""
        size = len(self.requests) // num_parts
        chosen = self.requests[number * size : (number + 1) * size]
        zero_s = chosen[0].at_s
        return tuple(msgspec.structs.replace(one, at_s=one.at_s - zero_s) for one in chosen)


def read_trace(path: Path, usual: TracePicture, *, speed: float = 1.0) -> Trace:
    """Read a file; `speed` of 2 lets requests come twice as fast.

    Raises:
        InvalidSettingError: As `read_requests` says, or it is too short to say anything.
    """
    requests = read_requests(path, usual)
    if len(requests) < _MIN_REQUESTS or requests[-1].at_s <= 0:
        raise InvalidSettingError(
            f"'{path}' has {len(requests)} requests over {requests[-1].at_s:g} s",
            hint=f"At least {_MIN_REQUESTS} that come one after the other are needed.",
        )
    quick = [msgspec.structs.replace(one, at_s=one.at_s / speed) for one in requests] if speed != 1.0 else requests
    return Trace(tuple(quick), likeness(quick))


def likeness(requests: Sequence[Request]) -> Traffic:
    """Traffic with the requests' rate, and for each of their classes its share and its means."""
    by_name: dict[str, list[Request]] = {}
    for one in requests:
        by_name.setdefault(one.class_name, []).append(one)
    seen: set[str] = set()
    classes = tuple(_class_of(name, members, len(requests), seen) for name, members in sorted(by_name.items()))
    rate_per_s = (len(requests) - 1) / max(requests[-1].at_s - requests[0].at_s, 1e-9)
    return Traffic(classes=classes, rate_per_s=rate_per_s, num_requests=len(requests))


def _class_of(name: str, members: Sequence[Request], num_all: int, seen: set[str]) -> RequestClass:
    pictures = [one for request in members for one in request.pictures]
    num_again = 0
    for one in pictures:
        num_again += one.identity in seen
        seen.add(one.identity)
    count = max(len(pictures), 1)
    return RequestClass(
        name=name,
        share=len(members) / num_all,
        num_images=-(-len(pictures) // len(members)),
        num_pixels=max(1, round(sum(one.num_pixels for one in pictures) / count)),
        visual_tokens=max(1, round(sum(one.num_tokens for one in pictures) / count)),
        text_tokens=max(1, round(sum(one.text_tokens for one in members) / len(members))),
        output_tokens=max(1, round(sum(one.output_tokens for one in members) / len(members))),
        repeat_share=num_again / count,
    )
