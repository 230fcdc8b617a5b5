"""Looks after the members: reads their load, and asks those unproven or long idle for a real, tiny piece of work."""

import asyncio
import struct
import zlib
from contextlib import aclosing
from itertools import count
from typing import Any, Protocol, cast, runtime_checkable

from chiasm.errors import ChiasmError, EngineError, RequestError
from chiasm.media.identity import content_identity
from chiasm.protocol.generation import GenerateRequest, RequestFinished, SamplingParams, TextPrompt
from chiasm.protocol.media import InlineSource, MediaItem
from chiasm.protocol.worker import EncodeRequest
from chiasm.routing.clock import Clock
from chiasm.routing.fleet import Fleet
from chiasm.routing.member import Member
from chiasm.settings import RoutingSettings

_MAX_MISSES = 3
_PROBE_SIDE_PIXELS = 32


@runtime_checkable
class Refreshable(Protocol):
    """A worker elsewhere, whose `stats` are as old as the last `refresh`."""

    async def refresh(self) -> object:
        """Fetch the worker's stats. Raises `ChiasmError`."""
        ...


class Health:
    """Runs until `aclose`. One look at a member at a time; looks at different members do not wait for each other."""

    def __init__(self, fleet: Fleet, settings: RoutingSettings, clock: Clock) -> None:
        self._fleet = fleet
        self._settings = settings
        self._clock = clock
        self._looks: dict[Member, asyncio.Task[None]] = {}
        self._misses: dict[Member, int] = {}
        self._next_probe_s: dict[Member, float] = {}
        self._num_probes = count()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, on the running event loop. Harmless when begun."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        """Stop looking."""
        tasks = [*self._looks.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def look(self, member: Member) -> None:
        """Read a member's load, and probe it when that is due."""
        if not await self._read(member):
            return
        now_s = self._clock.now_s()
        if member.state in ("starting", "down"):
            if now_s >= self._next_probe_s.get(member, 0.0):
                await self._prove(member)
        elif self._is_idle(member, now_s):
            await self._prove(member)

    def _is_idle(self, member: Member, now_s: float) -> bool:
        is_unused = now_s - member.used_s >= self._settings.probe_interval_s
        return member.state == "ready" and not member.num_open and is_unused

    async def _run(self) -> None:
        while True:
            members = self._fleet.members
            for gone in [one for one in self._misses if one not in members]:
                del self._misses[gone]
                self._next_probe_s.pop(gone, None)
            for member in members:
                if member not in self._looks:
                    self._looks[member] = asyncio.create_task(self._look_once(member))
            await asyncio.sleep(self._settings.health_interval_s)

    async def _look_once(self, member: Member) -> None:
        try:
            await self.look(member)
        finally:
            del self._looks[member]

    async def _read(self, member: Member) -> bool:
        """Whether the member says that it is well."""
        try:
            if isinstance(member.worker, Refreshable):
                async with asyncio.timeout(self._settings.probe_timeout_s):
                    await member.worker.refresh()
        except (ChiasmError, TimeoutError) as error:
            self._misses[member] = self._misses.get(member, 0) + 1
            if self._misses[member] >= _MAX_MISSES:
                self._fleet.failed(member, f"no answer to {_MAX_MISSES} looks: {_words(error)}")
            return False
        self._misses[member] = 0
        member.stats = member.worker.stats()
        if not member.stats.is_healthy:
            self._fleet.failed(member, "it says that it is not well")
        return member.stats.is_healthy

    async def _prove(self, member: Member) -> None:
        """Let it compute something, and believe what comes of it."""
        try:
            async with asyncio.timeout(self._settings.probe_timeout_s):
                await self._probe(member)
            self._fleet.check(member.name, member.info)
        except (ChiasmError, TimeoutError) as error:
            self._fleet.failed(member, f"a probe failed: {_words(error)}")
            self._next_probe_s[member] = self._clock.now_s() + self._settings.restart_backoff_s
            return
        member.used_s = self._clock.now_s()
        if member.state != "ready":
            member.mark_ready()

    async def _probe(self, member: Member) -> None:
        number, timeout_s = next(self._num_probes), self._settings.probe_timeout_s
        try:
            if "prefill" in member.info.roles or "decode" in member.info.roles:
                await _one_token(member, f"probe-{number}", timeout_s)
            elif member.info.takes_images:
                items = (_picture(number),)
                await member.worker.encode(
                    EncodeRequest(request_id=f"probe-{number}", items=items, timeout_s=timeout_s)
                )
        except RequestError:
            return  # it answers; that it does not like the question is another matter


async def _one_token(member: Member, request_id: str, timeout_s: float) -> None:
    request = GenerateRequest(
        request_id=request_id,
        prompt=TextPrompt("1"),
        sampling=SamplingParams(temperature=0.0, max_tokens=1),
        stream=False,
        timeout_s=timeout_s,
    )
    async with aclosing(cast("Any", member.worker.generate(request))) as events:
        async for event in events:
            if isinstance(event, RequestFinished):
                return
    raise EngineError("The engine's stream ended without a result")


def _picture(number: int) -> MediaItem:
    """A PNG of one colour, another one each time, so that no cache answers in the encoder's place."""
    side, colour = _PROBE_SIDE_PIXELS, struct.pack(">I", number % 2**24)[1:]
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + colour * side) * side)
    data = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", rows) + _chunk(b"IEND", b"")
    return MediaItem(identity=content_identity(data), format="png", width=side, height=side, source=InlineSource(data))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _words(error: Exception) -> str:
    return error.message if isinstance(error, ChiasmError) else "it took too long"
