"""Workers with single roles in one process, and the tensors between them, for tests of split stages."""

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from chiasm.errors import HandleExpiredError, OverloadedError, TransferError
from chiasm.protocol.generation import (
    ChatPrompt,
    GenerateRequest,
    ItemPart,
    Message,
    RequestFinished,
    SamplingParams,
    TextPart,
    TokenEvent,
    TokenLogprob,
)
from chiasm.protocol.kv import KvHandle
from chiasm.protocol.media import MediaItem
from chiasm.protocol.worker import EncodeRequest
from chiasm.settings import EngineSettings, MediaSettings, TransferSettings
from chiasm.workers.local import LocalWorker
from tests.numeric.test_engine import media_item, picture


class SharedTensors:
    """What all `MemoryTransport`s of a test offer, and switches to break it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.offers: dict[str, tuple[bytes, float]] = {}
        self.is_full = False
        self.get_delay_s = 0.0
        self.put_delay_s = 0.0
        self.corrupt = False
        self.num_puts = 0
        self.num_gets = 0


class MemoryTransport:
    """A `Transport` over a dictionary."""

    kind = "memory"

    def __init__(self, shared: SharedTensors) -> None:
        self._shared = shared
        self._mine: set[str] = set()
        self.is_closed = False

    @property
    def num_offered(self) -> int:
        with self._shared.lock:
            now_s = time.monotonic()
            return sum(key in self._mine and ends_s > now_s for key, (_, ends_s) in self._shared.offers.items())

    def put(self, key, data, *, ttl_s):
        self._shared.num_puts += 1
        time.sleep(self._shared.put_delay_s)
        if self._shared.is_full:
            raise OverloadedError("told to be full")
        with self._shared.lock:
            self._shared.offers[key] = (bytes(data), time.monotonic() + ttl_s)
            self._mine.add(key)
        return f"at {key}"

    def get(self, address, num_bytes, *, timeout_s):
        self._shared.num_gets += 1
        time.sleep(min(self._shared.get_delay_s, timeout_s))
        if self._shared.get_delay_s > timeout_s:
            raise TransferError("too late")
        with self._shared.lock:
            data, ends_s = self._shared.offers.get(address.removeprefix("at "), (b"", 0.0))
        if ends_s < time.monotonic():
            raise HandleExpiredError("not offered any more")
        if len(data) != num_bytes:
            raise TransferError("not whole")
        return memoryview(bytes(len(data)) if self._shared.corrupt else data)

    def drop(self, key):
        with self._shared.lock:
            if key in self._mine:
                self._shared.offers.pop(key, None)
                self._mine.discard(key)

    def close(self):
        for key in [*self._mine]:
            self.drop(key)
        self.is_closed = True


def start(directory: Path, roles=("encode", "prefill", "decode"), shared=None, transfer=None, **engine) -> LocalWorker:
    settings = EngineSettings(**({"threads": 1, "max_running": 4, "prefix_cache_bytes": 2**22} | engine))
    return LocalWorker.start(
        directory,
        "model",
        settings,
        MediaSettings(),
        lambda what, share: None,
        roles=roles,
        name="-".join(roles),
        transport=None if shared is None else MemoryTransport(shared),
        transfer=transfer or TransferSettings(),
    )


@dataclass
class Stages:
    """Encoder, prefill and decode worker of one topology; the same object may stand for several."""

    encode: LocalWorker
    prefill: LocalWorker
    decode: LocalWorker
    shared: SharedTensors
    workers: list[LocalWorker]

    async def run(self, request: GenerateRequest) -> "Answer":
        """What a router does, without its choices and its recovery."""
        request = await self.encoded(request)
        if self.decode is self.prefill:
            return await collect(self.decode, request)
        return await collect(self.decode, replace(request, kv=await self.prefilled(request)))

    async def encoded(self, request: GenerateRequest) -> GenerateRequest:
        if not request.items or self.encode is self.prefill:
            return request
        response = await self.encode.encode(EncodeRequest(request_id=request.request_id, items=request.items))
        items = zip(request.items, response.handles, strict=True)
        return replace(request, items=tuple(replace(item, source=handle) for item, handle in items))

    async def prefilled(self, request: GenerateRequest) -> KvHandle:
        sampling = replace(request.sampling, max_tokens=1, min_tokens=0, n=1)
        answer = await collect(self.prefill, replace(request, sampling=sampling, hands_over_kv=True))
        assert answer.end.kv is not None
        return answer.end.kv


@asynccontextmanager
async def staged(directory: Path, topology: str, **engine) -> AsyncIterator[Stages]:
    """One worker per group of letters, as in 'e-p-d', 'ep-d', or 'p-d' for a text model; 'agg' is 'epd'."""
    shared = SharedTensors()
    async with AsyncExitStack() as stack:
        workers: list[LocalWorker] = []
        stages: dict[str, LocalWorker] = {}
        names = {"e": "encode", "p": "prefill", "d": "decode"}
        letters = "epd" if topology == "agg" else topology
        for group in letters.split("-"):
            worker = start(directory, tuple(names[letter] for letter in group), shared, **engine)
            stack.push_async_callback(worker.aclose)
            workers.append(worker)
            stages |= {names[letter]: worker for letter in group}
        yield Stages(stages.get("encode", stages["prefill"]), stages["prefill"], stages["decode"], shared, workers)


@dataclass
class Answer:
    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    end: RequestFinished | None = None


async def collect(worker: LocalWorker, request: GenerateRequest) -> Answer:
    answer = Answer()
    async with aclosing(worker.generate(request)) as events:
        async for event in events:
            if isinstance(event, TokenEvent):
                answer.tokens.setdefault(event.choice, []).extend(event.token_ids)
                answer.logprobs.extend(event.logprobs or ())
            if isinstance(event, RequestFinished):
                answer.end = event
    assert answer.end is not None
    return answer


def pictures(seed: int, count: int) -> tuple[MediaItem, ...]:
    rng = random.Random(seed)
    return tuple(media_item(picture(rng)) for _ in range(count))


def ask(text: str, *items: MediaItem, places: tuple[int | str, ...] | None = None, **sampling) -> GenerateRequest:
    """A chat with the items in order before the text, or with parts as `places` says: texts and item numbers."""
    order = (*range(len(items)), text) if places is None else (*places, text)
    parts = tuple(TextPart(part) if isinstance(part, str) else ItemPart(part) for part in order)
    return GenerateRequest(
        request_id=text,
        prompt=ChatPrompt((Message("user", parts),)),
        items=items,
        sampling=SamplingParams(**({"temperature": 0, "max_tokens": 8, "ignore_eos": True} | sampling)),
        timeout_s=60,
    )


async def idle(worker: LocalWorker, timeout_s: float = 20) -> None:
    """Wait until nothing is held; fail when something stays."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        stats = worker.stats()
        held = {
            "running": stats.num_running,
            "waiting": stats.num_waiting,
            "embeddings": stats.num_held_embeddings,
            "requests": stats.num_open_requests,
            "pins": stats.num_pinned_blocks,
            "flights": worker._embeddings.num_in_flight,
            "pixels": worker._decoder.num_decoding_pixels,
            "kv bytes": worker._generations._kv.held_bytes if worker._generations else 0,
        }
        if not any(held.values()):
            if worker._engine.core is not None:
                worker._engine.core.pool.check_invariants()
            return
        assert time.monotonic() < deadline_s, f"still held: {held}"
        await asyncio.sleep(0.005)


async def until(condition: Callable[[], object], timeout_s: float = 60) -> None:
    """Wait for something to come true."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it never happened"
        await asyncio.sleep(0.001)


def slow_forward(worker: LocalWorker, monkeypatch, delay_s: float) -> None:
    """Let every step take longer, so that what a test waits for happens before the request it watches ends."""
    forward = worker._engine.language.decoder.forward

    def slow(*arguments):
        time.sleep(delay_s)
        return forward(*arguments)

    monkeypatch.setattr(worker._engine.language.decoder, "forward", slow)
