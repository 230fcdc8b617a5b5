"""Pictures of one request are encoded together where that costs nobody time: their tower reads its weights once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from chiasm.engines.pooling.dual import Picture
from chiasm.engines.pooling.loop import PoolingWork
from chiasm.workers.flights import SingleFlight

Encode = Callable[[Sequence[Picture]], Awaitable[PoolingWork]]
"""Computes pictures; the work's rows are [rows, width] of each."""
MOST_PICTURES = 4
"""Encoded together. Of more, little is gained, and the first ones would wait for longer."""


@dataclass(eq=False)
class _Group:
    pictures: list[Picture] = field(default_factory=list)
    is_closed: asyncio.Event = field(default_factory=asyncio.Event)


class Company:
    """One request's. Belongs to its event loop.

    A picture waits for those that are still decoded while decoding takes the cores: its tower would only take turns
    with that. Otherwise it goes at once. Those who are cancelled, or fail, keep nobody waiting.
    """

    def __init__(self, encode: Encode, is_crowded: Callable[[], bool]) -> None:
        self._encode = encode
        self._is_crowded = is_crowded
        self._group = _Group()
        self._num_expected = 0
        self._works: SingleFlight[_Group, PoolingWork] = SingleFlight(lambda _work, _is_wanted: None)

    async def encoded(self, decode: Callable[[], Awaitable[Picture]]) -> tuple[PoolingWork, int]:
        """Decode a picture, then have it encoded: a work, and the number of its input there. Raises what both raise."""
        self._num_expected += 1
        try:
            picture = await decode()
            group = self._group
            group.pictures.append(picture)
        finally:
            self._num_expected -= 1
            self._close_if_due()
        try:
            await group.is_closed.wait()
        except asyncio.CancelledError:
            if not group.is_closed.is_set():
                group.pictures.remove(picture)
            raise
        async with self._works.join(group, partial(self._encode, group.pictures)) as work:
            return work, group.pictures.index(picture)

    def _close_if_due(self) -> None:
        group = self._group
        is_full = len(group.pictures) >= MOST_PICTURES
        if group.pictures and (is_full or not self._num_expected or not self._is_crowded()):
            self._group = _Group()
            group.is_closed.set()
