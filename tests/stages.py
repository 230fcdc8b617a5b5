"""Workers with single roles in one process, and the tensors between them, for tests of split stages."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from chiasm.connectors.base import Transport
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
from chiasm.settings import AdapterSettings, EngineSettings, MediaSettings, TransferSettings
from chiasm.workers.local import LocalWorker
from tests.memory_transport import MemoryTransport, SharedTensors
from tests.numeric.test_engine import media_item, picture


def start(
    directory: Path,
    roles=("encode", "prefill", "decode"),
    shared=None,
    transfer=None,
    transport=None,
    adapters=None,
    **engine,
) -> LocalWorker:
    settings = EngineSettings(**({"threads": 1, "max_running": 4, "prefix_cache_bytes": 2**22} | engine))
    return LocalWorker.start(
        directory,
        "model",
        settings,
        MediaSettings(),
        lambda what, share: None,
        roles=roles,
        name="-".join(roles),
        transport=transport or (None if shared is None else MemoryTransport(shared)),
        transfer=transfer or TransferSettings(),
        adapters=adapters or AdapterSettings(),
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
async def staged(
    directory: Path, topology: str, make: Callable[[], Transport] | None = None, **engine
) -> AsyncIterator[Stages]:
    """One worker per group of letters, as in 'e-p-d', 'ep-d', or 'p-d' for a text model; 'agg' is 'epd'."""
    shared = SharedTensors()
    async with AsyncExitStack() as stack:
        workers: list[LocalWorker] = []
        stages: dict[str, LocalWorker] = {}
        names = {"e": "encode", "p": "prefill", "d": "decode"}
        letters = "epd" if topology == "agg" else topology
        for group in letters.split("-"):
            roles = tuple(names[letter] for letter in group)
            worker = start(directory, roles, shared, transport=make and make(), **engine)
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
        timeout_s=110,
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


def slow_forward(worker: LocalWorker, monkeypatch, delay_s: float) -> None:
    """Let every step take longer, so that what a test waits for happens before the request it watches ends."""
    forward = worker._engine.language.decoder.forward

    def slow(*arguments):
        time.sleep(delay_s)
        return forward(*arguments)

    monkeypatch.setattr(worker._engine.language.decoder, "forward", slow)
