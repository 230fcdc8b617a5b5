"""A vLLM server, as a `Worker`."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from chiasm.errors import (
    ChiasmError,
    DeadlineExceededError,
    EngineDeadError,
    EngineError,
    EngineStartError,
    InvalidRequestError,
    UnsupportedFeatureError,
)
from chiasm.media.item_errors import naming_item
from chiasm.observability.receipt import StageClock
from chiasm.protocol.adapters import AdapterInfo, AdapterLoad, AdapterRef
from chiasm.protocol.deletion import Deleted, Deletion
from chiasm.protocol.generation import GenerateEvent, GenerateRequest, RequestFinished
from chiasm.protocol.wire import WireRequest
from chiasm.protocol.worker import EncodeRequest, EncodeResponse, Role, WorkerInfo, WorkerStats
from chiasm.routing.coverage.losses import Lost
from chiasm.routing.remote.channel import Channel
from chiasm.routing.remote.connection import WorkerConnection
from chiasm.routing.vllm.adapters import LOAD_PATH, UNLOAD_PATH, AdapterCopies
from chiasm.routing.vllm.answers import Answer, EventReader, answer_of
from chiasm.routing.vllm.cache_events import EventsAddress, Follower, ZmqSource
from chiasm.routing.vllm.events import EventStream
from chiasm.routing.vllm.faults import translated
from chiasm.routing.vllm.forgetting import Forgetting
from chiasm.routing.vllm.handles import handles_of, kv_metadata
from chiasm.routing.vllm.kv_register import KvRegister
from chiasm.routing.vllm.model import ServedModel
from chiasm.routing.vllm.requests import CallWriter
from chiasm.routing.vllm.stats import NOTHING, stats_of
from chiasm.routing.vllm.versions.base import Version
from chiasm.routing.vllm.versions.registry import version_for
from chiasm.routing.vllm.videos import VideoFrames, check_encodable, with_frames

_LOOK_TIMEOUT_S = 5.0
_LOADED_ALREADY = "already been loaded"
_RANK_HEADER = "X-data-parallel-rank"
_STATS_INTERVAL_S = 2.0  # the page of counters is long; whether the engine lives is asked at every look


class _Served(msgspec.Struct):
    id: str
    parent: str | None = None
    max_model_len: int | None = None  # adapters have none


class _Models(msgspec.Struct):
    data: list[_Served]


class _Release(msgspec.Struct):
    version: str


Body = TypeVar("Body", _Models, _Release)


class VllmOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is used.

    Attributes:
        name: The worker's name in receipts and metrics.
        roles: What it was started for; vLLM does not tell.
        device: Where it computes, in words.
        token: Its API key.
        assume_version: The release whose calls are used, whatever it says it is.
        spool: Folder from which it reads media by name; None: media travel in the calls.
        max_running: Sequences that it computes at once.
        ttl_s: Time for which an embedding is counted on.
        data_parallel_rank: The rank that all calls go to; None: the server chooses.
        adapters: Copies of adapters that the server can read; None: it computes with none.
        loads_adapters: Whether it takes further ones while it runs.
        ec_connector: By which embeddings come or go; empty: by none.
        server: The server that other ranks are engines of, too; empty: there are none.
        videos: Makes the frames of videos for a server that loads Chiasm's media connector; None: it takes none.
        turn: Held while a deletion has the server rest; its ranks share it.
        cache_events: Where it says what it stores and evicts; None: nowhere.
        kv_register: Where its keys and values are found, if it does not say so itself; empty: it does.
    """

    name: str
    roles: tuple[Role, ...]
    device: str = "unknown"
    token: str | None = None
    assume_version: str = ""
    spool: Path | None = None
    max_running: int = 256
    ttl_s: float = 60.0
    data_parallel_rank: int | None = None
    adapters: AdapterCopies | None = None
    loads_adapters: bool = False
    server: str = ""
    ec_connector: str = ""
    videos: VideoFrames | None = None
    turn: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    cache_events: EventsAddress | None = None
    kv_register: str = ""


class VllmWorker:
    """Implements `chiasm.protocol.worker.Worker` by a vLLM server's own calls. Lives on one event loop.

    Closing a generation's iterator closes its connection, at which vLLM cancels.
    """

    def __init__(
        self, connection: WorkerConnection, model: ServedModel, served: _Served, version: Version, options: VllmOptions
    ) -> None:
        self._connection = connection
        self._model = model
        self._version = version
        self._options = options
        self._follower = None if options.cache_events is None else Follower()
        self._calls = CallWriter(
            model, served.id, version, options.spool, follows_cache=options.cache_events is not None
        )
        rank = options.data_parallel_rank or 0
        self._kv_register = KvRegister(options.kv_register, rank) if options.kv_register else None
        self._stats = NOTHING
        self._stats_due_s = 0.0
        self._num_open = 0
        self._loras: set[str] = set()  # revisions that the server has
        self._forgetting = Forgetting(connection, served.id, options.roles, options.ec_connector, options.turn)
        self._info = WorkerInfo(
            name=options.name,
            model=model.name,
            family=model.family,
            roles=options.roles,
            dtype=model.dtype,
            device=options.device,
            max_model_tokens=served.max_model_len or 0,
            takes_images=model.takes_images,
            encodes_for_others=options.roles == ("encode",),
            mixes_sources=False,
            hands_kv_to_one="prefill" in options.roles and "decode" not in options.roles,
            takes_adapters=options.adapters is not None and options.roles != ("encode",),
            model_revision=model.revision,
            processor_revision=model.processor_revision,
            started_at_unix_s=time.time(),
            server=options.server,
        )

    @classmethod
    async def connect(
        cls, address: str, model: ServedModel, options: VllmOptions, *, timeout_s: float = _LOOK_TIMEOUT_S
    ) -> "VllmWorker":
        """Ask a server what it is. `address` is `http://host:port`, or `unix:` and a path.

        Raises:
            EngineDeadError: Nobody answers there.
            DeadlineExceededError: It did not answer within `timeout_s`.
            EngineError: It is no vLLM server.
            EngineStartError: Its version is unknown, or it serves no model.
        """
        rank = options.data_parallel_rank
        connection = WorkerConnection(address, options.token, {} if rank is None else {_RANK_HEADER: str(rank)})
        connection.name = options.name
        worker: VllmWorker | None = None
        try:
            release = await _release(connection, timeout_s)
            version = version_for(release, options.assume_version)
            models = _decoded(await connection.get("/v1/models", timeout_s), _Models).data
            served = next((one for one in models if one.parent is None), None)
            if served is None:
                raise EngineStartError(f"The vLLM server '{options.name}' serves no model")
            worker = cls(connection, model, served, version, options)
            worker._loras = {one.id for one in models if one.parent is not None}
            await worker.refresh(timeout_s)
        except BaseException:
            await (connection if worker is None else worker).aclose()
            raise
        return worker

    @property
    def info(self) -> WorkerInfo:
        """See `Worker`."""
        return self._info

    def stats(self) -> WorkerStats:
        """The snapshot that `refresh` fetched last; unhealthy when it failed."""
        return self._stats

    async def refresh(self, timeout_s: float = _LOOK_TIMEOUT_S) -> WorkerStats:
        """Fetch a new snapshot. Raises `EngineDeadError` or `DeadlineExceededError` when the engine does not answer."""
        now_s = asyncio.get_running_loop().time()
        try:
            await self._connection.get("/health", timeout_s)
            if self._kv_register is not None:
                await self._kv_register.look(timeout_s)
            await self._forgetting.wake()
            if now_s >= self._stats_due_s:
                await self._forgetting.look()
                page = (await self._connection.get("/metrics", timeout_s)).decode(errors="replace")
                self._stats = self._read(page)
                self._stats_due_s = now_s + _STATS_INTERVAL_S
        except Exception as error:
            self._stats = msgspec.structs.replace(self._stats, is_healthy=False)
            self._stats_due_s = 0.0
            if isinstance(error, ChiasmError) and not isinstance(error, EngineDeadError):
                raise EngineDeadError(
                    f"vLLM says that its engine is not well: {error.message}", hint=error.hint
                ) from error
            raise
        return self._stats

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent, None]:
        """See `Worker`."""
        if request.adapter is not None:
            await self._have(request.adapter, request.timeout_s)
        reader, finished = EventReader(request.sampling.n, self._model.num_visual_tokens(request)), None
        with self._counted(request), self._forgetting.under_way(request):
            async with (
                with_frames(request, self._options.videos, self._options.name) as (sent, spans),
                self._connection.post(self._calls.generate(sent), sent.timeout_s) as channel,
            ):
                async for answer in self._answers(channel, is_stream=request.stream):
                    for event in reader.events(answer):
                        yield event
                    finished = self._finished(reader, answer, request) or finished
        if finished is None:
            raise EngineDeadError(f"Worker {self._info.name} ended an answer without a result")
        if self._follower is not None:
            self._follower.served(request, finished.usage)
        later = [span.shifted(request.timeout_s - sent.timeout_s) for span in reader.spans]
        yield msgspec.structs.replace(finished, spans=(*spans, *later))

    def report_losses(self, lost: Lost) -> None:
        """See `ReportsLosses`. Nothing is reported of a server whose events are not known."""
        if self._follower is not None and self._options.cache_events is not None:
            self._follower.start(ZmqSource(self._options.cache_events), lost)

    async def encode(self, request: EncodeRequest) -> EncodeResponse:
        """See `Worker`. The server does not say how long it took: all of the call is counted as encoding."""
        for index, item in enumerate(request.items):
            with naming_item(index):
                check_encodable(item, self._model, self._version)
        clock = StageClock()
        with self._counted(None), self._forgetting.under_way(request):
            async with (
                with_frames(request, self._options.videos, self._options.name) as (sent, spans),
                self._connection.post(self._calls.encode(sent), sent.timeout_s) as channel,
            ):
                body = await self._connection.whole(channel)
            handles = handles_of(self._version.described(body), request, self._model, self._options.ttl_s)
        sent_s = request.timeout_s - sent.timeout_s
        for place in range(len(handles)):
            clock.add("encode", sent_s, clock.now_s(), place)
        return EncodeResponse(handles=handles, spans=(*spans, *clock.spans))

    @property
    def counts_encoding_as_prefill(self) -> bool:
        """See `Undivided`."""
        return True

    @property
    def rests_to_forget(self) -> bool:
        """See `Resting`."""
        return True

    async def forget(self, deletion: Deletion, timeout_s: float) -> tuple[Deleted, ...]:
        """See `Forgetful`. A server forgets everything, between two requests."""
        return (await self._forgetting.forget(deletion, self._info.name, timeout_s),)

    async def load_adapter(self, load: AdapterLoad, timeout_s: float) -> AdapterInfo:
        """See `Adaptable`."""
        info = await asyncio.to_thread(self._copies().place, load)
        await self._have(info.ref, timeout_s)
        return info

    async def unload_adapter(self, ref: AdapterRef, timeout_s: float) -> None:
        """See `Adaptable`."""
        if ref.revision in self._loras and self._options.loads_adapters:
            self._loras.discard(ref.revision)
            await self._say(UNLOAD_PATH, {"lora_name": ref.revision}, timeout_s)

    async def _have(self, ref: AdapterRef, timeout_s: float) -> None:
        """Have the server know an adapter. One that was started again has those it was started with alone."""
        if ref.revision in self._loras:
            return
        copies = self._copies()
        if not self._options.loads_adapters:
            raise UnsupportedFeatureError(
                f"The vLLM server '{self._options.name}' takes no adapters while it runs",
                hint="Set adapters.roots, or name it in adapters.preload",
            )
        await asyncio.to_thread(copies.ensure, ref)
        try:
            body = {"lora_name": ref.revision, "lora_path": str(copies.path(ref.revision))}
            await self._say(LOAD_PATH, body, timeout_s)
        except InvalidRequestError as error:
            if _LOADED_ALREADY not in error.message:  # by another request, a moment ago
                raise
        self._loras.add(ref.revision)

    async def _say(self, path: str, body: dict[str, str], timeout_s: float) -> None:
        call = WireRequest(path, (msgspec.json.encode(body),))
        async with self._connection.post(call, timeout_s) as channel:
            await self._connection.whole(channel)

    def _copies(self) -> AdapterCopies:
        if self._options.adapters is None:
            raise UnsupportedFeatureError(
                f"The vLLM server '{self._options.name}' computes with no adapters",
                hint="Servers that Chiasm starts do, with adapters.roots or adapters.preload set",
            )
        return self._options.adapters

    async def aclose(self) -> None:
        """Let go of the server, which lives on; requests still open end with `EngineDeadError`."""
        self._stats = msgspec.structs.replace(self._stats, is_healthy=False)
        await self._forgetting.aclose()
        if self._follower is not None:
            await self._follower.aclose()
        if self._kv_register is not None:
            await self._kv_register.aclose()
        await self._connection.aclose()

    async def _answers(self, channel: Channel, *, is_stream: bool) -> AsyncGenerator[Answer, None]:
        if not is_stream:
            yield answer_of(await self._connection.whole(channel))
            return
        events = EventStream()
        while data := await channel.read():
            for payload in events.feed(data):
                yield answer_of(payload)

    @contextmanager
    def _counted(self, request: GenerateRequest | None) -> Iterator[None]:
        self._num_open += 1
        try:
            yield
        except ChiasmError as error:
            meant = translated(error, request)
            if meant is error:
                raise
            raise meant from error
        finally:
            self._num_open -= 1

    def _finished(self, reader: EventReader, answer: Answer, request: GenerateRequest) -> RequestFinished | None:
        finished = reader.finished(answer)
        if finished is None or not request.hands_over_kv:
            return finished
        metadata = kv_metadata(self._model, finished.usage.num_prompt_tokens, request)
        if self._kv_register is None:
            kept = self._version.kv_offered(answer.kv_transfer_params, metadata)
        else:
            kept = self._version.kv_registered(request.request_id, self._kv_register.place, metadata)
        return msgspec.structs.replace(finished, kv=kept)

    def _read(self, page: str) -> WorkerStats:
        options = self._options
        stats = stats_of(
            page,
            is_healthy=True,
            num_open=self._num_open,
            max_running=options.max_running,
            rank=options.data_parallel_rank,
        )
        if self._follower is None:
            return stats
        return msgspec.structs.replace(stats, totals={**stats.totals, **self._follower.totals})


def _decoded(body: bytes, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise EngineError(f"The answer cannot be understood: {str(error)[:200]}") from error


async def _release(connection: WorkerConnection, timeout_s: float) -> str:
    """The release of the server there. Raises as `VllmWorker.connect` does."""
    try:
        return _decoded(await connection.get("/version", timeout_s), _Release).version
    except EngineDeadError as error:
        raise EngineDeadError(
            "Nobody answers at its address", hint="Start it, or look at host and port; it is asked again"
        ) from error
    except DeadlineExceededError:
        raise
    except ChiasmError as error:
        raise EngineError(
            f"Who answers at its address is no vLLM server: {error.message}", hint="Look at host and port"
        ) from error
