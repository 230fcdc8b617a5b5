"""Which requests may have been computed of an embedding that was not there."""

from collections.abc import Collection, Sequence
from typing import Protocol


class _Position(Protocol):
    offset: int
    length: int


class _Feature(Protocol):
    identifier: str
    mm_position: _Position


class _Request(Protocol):
    """What is looked at of vLLM's requests."""

    num_computed_tokens: int
    num_in_flight_tokens: int
    num_stale_output_tokens: int
    mm_features: Sequence[_Feature]


def touches(request: _Request, lost: Collection[str], *, is_new: bool) -> bool:
    """Whether a request's steps that are still out read a lost item, or may have found blocks of others that do.

    Args:
        request: `num_computed_tokens` are those up to the end of all steps that are out, `num_in_flight_tokens` the
            ones in these steps. One that was preempted meanwhile has nothing computed, and stale tokens on their way.
        lost: Identities of items.
        is_new: One of these steps let the request in, so that it may have begun with blocks of the prefix cache.
    """
    end = request.num_computed_tokens
    begin = 0 if is_new else end - request.num_in_flight_tokens
    was_preempted = request.num_stale_output_tokens > 0
    return any(
        was_preempted or (begin < one.mm_position.offset + one.mm_position.length and one.mm_position.offset < end)
        for one in request.mm_features
        if one.identifier in lost
    )
