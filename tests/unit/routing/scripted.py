"""Workers that behave like the embedded engine's as far as a router can tell, and fail on command."""

import asyncio
import hashlib
from collections import Counter
from contextlib import contextmanager

from chiasm.errors import (
    ChecksumMismatchError,
    EngineDeadError,
    HandleExpiredError,
    LayoutMismatchError,
    UnsupportedMediaError,
)
from chiasm.observability.receipt import Span
from chiasm.protocol.deletion import Deleted
from chiasm.protocol.generation import (
    ChatPrompt,
    ChoiceFinished,
    GenerateRequest,
    ItemPart,
    Message,
    RequestFinished,
    SamplingParams,
    TextPart,
    TextPrompt,
    TokenEvent,
    Usage,
)
from chiasm.protocol.kv import KvHandle, KvMetadata
from chiasm.protocol.media import EmbeddingHandle, EmbeddingMetadata, InlineSource, MediaItem
from chiasm.protocol.worker import EncodeResponse, SupplyRequest, WorkerInfo, WorkerStats
from chiasm.workers.late import LateEmbeddings, arrived

ALL = ("encode", "prefill", "decode")
TTL_S = 60.0


def picture(name: str, side: int = 448, source=None) -> MediaItem:
    data = name.encode()
    identity = hashlib.sha256(data).hexdigest()
    return MediaItem(identity=identity, format="png", width=side, height=side, source=source or InlineSource(data))


def ask(text: str = "what is this", *items: MediaItem, request_id: str = "r", **fields) -> GenerateRequest:
    """Items first, then the text, as a chat."""
    parts = (*(ItemPart(index) for index in range(len(items))), TextPart(text))
    sampling = fields.pop("sampling", SamplingParams(temperature=0.0, max_tokens=8))
    return GenerateRequest(
        request_id=request_id,
        prompt=ChatPrompt((Message("user", parts),)),
        items=tuple(items),
        sampling=sampling,
        **fields,
    )


def expected_answer(request: GenerateRequest) -> list[str]:
    """What any of the workers says: the words of the text, and of each picture the start of its identity."""
    if isinstance(request.prompt, TextPrompt):
        words = request.prompt.text.split()
    else:
        words = [
            word for m in request.prompt.messages for p in m.parts if isinstance(p, TextPart) for word in p.text.split()
        ]
    return [*words, *(item.identity[:6] for item in request.items)][: request.sampling.max_tokens]


class Tensors:
    """What the workers' connectors offer: key -> 'ok', 'corrupt' or 'misshapen'."""

    def __init__(self) -> None:
        self.embeddings: dict[str, tuple[str, float]] = {}
        self.kv: dict[str, float] = {}
        self._count = 0

    def key(self) -> str:
        self._count += 1
        return f"t{self._count}"


class ScriptedWorker:
    """Encodes and generates at a set pace. `faults[stage]` is a list of what to do at the next calls of a stage.

    A fault is an exception to raise, 'hang', 'die', or for 'encode' also 'lose', 'corrupt' and 'misshape'; for 'decode'
    'drop' and 'die' happen after the first token. None is no fault.
    """

    def __init__(
        self, name, tensors, roles=ALL, *, encode_s=0.04, prefill_s=0.02, step_s=0.005, hop_s=0.0, **info
    ) -> None:
        self.name, self.tensors = name, tensors
        self.encode_s, self.prefill_s, self.step_s = encode_s, prefill_s, step_s
        self.hop_s = hop_s
        self.faults: dict[str, list] = {"encode": [], "prefill": [], "decode": []}
        self.is_dead = False
        self.is_closed = False
        self.cache: set[str] = set()
        self.ids: list[str] = []
        self.requests: list[GenerateRequest] = []
        self.supplied: list[SupplyRequest] = []
        self.encoded: list[str] = []
        self.deletions: list = []
        self.counts: Counter[str] = Counter()
        self.num_open = 0
        self.engine = asyncio.Lock()
        self.late = LateEmbeddings()
        self.started = asyncio.Event()
        fields = {
            "name": name,
            "model": "fake",
            "family": "fake",
            "roles": roles,
            "dtype": "float32",
            "device": "cpu",
            "max_model_tokens": 4096,
            "takes_images": True,
            "model_revision": "m1",
            "processor_revision": "p1",
            "started_at_unix_s": 1.7e9,
        }
        self.info = WorkerInfo(**(fields | info))

    def stats(self) -> WorkerStats:
        return WorkerStats(
            is_healthy=not self.is_dead,
            num_running=self.num_open,
            num_waiting=0,
            num_free_slots=16 - self.num_open,
            num_cached_blocks=3,
            num_cached_embeddings=len(self.cache),
            num_held_embeddings=0,
            num_open_requests=self.num_open,
            totals={"encoded_items": float(len(self.encoded))},
        )

    async def aclose(self) -> None:
        self.is_closed = True

    async def forget(self, deletion, timeout_s):
        await asyncio.sleep(self.hop_s)
        if deletion.offer is not None:
            self.tensors.kv.pop(deletion.offer, None)
            self.counts["withdrawn"] += 1
            return (Deleted(worker="itself"),)
        fault = self.faults.get("forget")
        if isinstance(fault, Exception):
            raise fault
        if fault == "hang":
            await asyncio.sleep(1e6)
        self.deletions.append(deletion)
        gone = {one for one in self.cache if deletion.identity in (None, one)}
        self.cache -= gone
        return (Deleted(worker="itself", num_embeddings=len(gone)),)

    async def encode(self, request):
        with self._open(request.request_id):
            await asyncio.sleep(self.hop_s)
            start_s = self._now_s()
            fault = await self._fault("encode")
            spans = [span for item in request.items for span in await self._encode_one(item)]
            handles = tuple(self._offer(item.identity, fault) for item in request.items)
            return EncodeResponse(handles=handles, spans=tuple(span.shifted(-start_s) for span in spans))

    async def supply(self, request):
        await asyncio.sleep(self.hop_s)
        self.supplied.append(request)
        if self.is_dead:
            raise EngineDeadError(f"'{self.name}' is dead")
        await self.late.supply(request)

    async def generate(self, request):
        self.requests.append(request)
        with self._open(request.request_id), self.late.expecting(request) as late:
            await asyncio.sleep(self.hop_s)
            start_s = self._now_s()
            spans = []
            if request.kv is None:
                await self._fault("prefill")
                share_s = self.prefill_s / (1 + len(late))
                for place, item in enumerate(request.items):
                    if place in late:
                        spans += await self._work("prefill", share_s)
                    spans += await self._see(await arrived(item, late.get(place)))
                spans += await self._work("prefill", share_s)
                spans = [span.shifted(-start_s) for span in spans]
            else:
                self._take_kv(request.kv)
            usage = self._usage(request)
            if request.hands_over_kv:
                yield TokenEvent(0, "x", (1,))
                yield ChoiceFinished(0, "length")
                yield RequestFinished(usage, tuple(spans), self._offer_kv())
                return
            fault = None if self.faults["decode"][:1] == ["drop"] else await self._fault("decode")
            for index, word in enumerate(expected_answer(request)):
                yield TokenEvent(0, word if index == 0 else " " + word, (index,))
                if self.faults["decode"][:1] == ["drop"]:
                    self.faults["decode"].pop(0)
                    await self._die()
                await asyncio.sleep(self.step_s)
            assert fault is None
            yield ChoiceFinished(0, "length")
            yield RequestFinished(usage, tuple(spans))

    def _usage(self, request) -> Usage:
        return Usage(
            num_prompt_tokens=10 + 4 * len(request.items),
            num_output_tokens=1 if request.hands_over_kv else len(expected_answer(request)),
            num_cached_tokens=0 if request.kv is None else 9,
            num_visual_tokens=4 * len(request.items),
        )

    @contextmanager
    def _open(self, request_id):
        if self.is_dead:
            raise EngineDeadError(f"'{self.name}' is dead")
        assert request_id not in self.ids, f"{self.name} saw {request_id} twice"
        self.ids.append(request_id)
        self.num_open += 1
        self.started.set()
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            self.counts["cancelled"] += 1
            raise
        finally:
            self.num_open -= 1

    async def _fault(self, stage):
        fault = self.faults[stage].pop(0) if self.faults[stage] else None
        if isinstance(fault, Exception):
            raise fault
        if fault == "hang":
            await asyncio.sleep(1e6)
        if fault == "die":
            await self._die()
        return fault

    async def _die(self):
        self.is_dead = True
        await asyncio.sleep(0)
        raise EngineDeadError(f"'{self.name}' died")

    async def _work(self, stage, seconds):
        """Use the engine, which does one thing at a time; spans of the wait and of the work, on the loop's clock."""
        asked_s = self._now_s()
        async with self.engine:
            start_s = self._now_s()
            await asyncio.sleep(seconds)
        return [Span(f"{stage}_queue", asked_s, start_s), Span(stage, start_s, self._now_s())]

    async def _encode_one(self, item):
        if item.identity in self.cache:
            self.counts["cache_hits"] += 1
            return []
        spans = await self._work("encode", self.encode_s * item.width * item.height / 448**2)
        self.encoded.append(item.identity)
        self.cache.add(item.identity)
        return spans

    async def _see(self, item):
        """Have an item's embedding at hand, as a worker that prefills does."""
        if item.identity in self.cache:
            self.counts["cache_hits"] += 1
        elif isinstance(item.source, EmbeddingHandle):
            state, expires_s = self.tensors.embeddings.get(item.source.key, ("lost", 0.0))
            if state == "lost" or expires_s < 1.7e9 + self._now_s():
                raise HandleExpiredError("The embedding is not offered any more")
            if state == "corrupt":
                raise ChecksumMismatchError("The bytes differ")
            if state == "misshape":
                raise LayoutMismatchError("The shape differs")
            self.counts["taken"] += 1
            self.cache.add(item.identity)
        elif "encode" in self.info.roles:
            return await self._encode_one(item)
        else:
            raise UnsupportedMediaError("This worker does not encode", item=0)
        return []

    def _offer(self, identity, fault):
        key = self.tensors.key()
        expires_s = 1.7e9 + self._now_s() + TTL_S
        self.tensors.embeddings[key] = ({"lose": "lost"}.get(fault, fault or "ok"), expires_s)
        metadata = EmbeddingMetadata(
            identity=identity,
            num_embeddings=64,
            shape=(64, 32),
            dtype="float32",
            grid_thw=(1, 16, 16),
            merge_size=2,
            model_revision=self.info.model_revision,
            processor_revision=self.info.processor_revision,
            checksum="c",
        )
        return EmbeddingHandle(connector="shm", key=key, metadata=metadata, expires_at_s=expires_s)

    def _offer_kv(self):
        key = self.tensors.key()
        self.tensors.kv[key] = self._now_s()
        metadata = KvMetadata(
            num_tokens=10,
            shape=(2, 2, 1, 10, 8),
            dtype="float32",
            model_revision="m1",
            prompt_hash="0" * 64,
            checksum="c",
        )
        return KvHandle(connector="shm", key=key, metadata=metadata, expires_at_s=1.7e9 + self._now_s() + TTL_S)

    def _take_kv(self, handle):
        if self.tensors.kv.pop(handle.key, None) is None:
            raise HandleExpiredError("The keys and values are not offered any more")

    def _now_s(self):
        return asyncio.get_running_loop().time()
