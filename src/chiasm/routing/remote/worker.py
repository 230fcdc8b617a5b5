"""A worker of another process, as a `Worker`."""

from collections.abc import AsyncGenerator
from typing import TypeVar

import msgspec

from chiasm.errors import EngineDeadError, EngineError, UnsupportedFeatureError
from chiasm.observability.memory import WorkerMemory
from chiasm.protocol.adapters import LOAD_PATH, UNLOAD_PATH, AdapterInfo, AdapterLoad, AdapterRef, decode_adapter
from chiasm.protocol.contract import CONTRACT_HEADER, CONTRACT_VERSION, check_worker
from chiasm.protocol.deletion import FORGET_PATH, Deleted, Deletion, decode_deleted
from chiasm.protocol.generation import GenerateEvent, GenerateRequest, RequestFinished
from chiasm.protocol.memory import MEMORY_PATH, decode_memory
from chiasm.protocol.wire import StreamDecoder, WireRequest, decode_encoded, decode_whole, encode_request, encode_supply
from chiasm.protocol.worker import EncodeRequest, EncodeResponse, SupplyRequest, WorkerInfo, WorkerStats
from chiasm.routing.remote.connection import WorkerConnection

_LOOK_TIMEOUT_S = 5.0
Body = TypeVar("Body", WorkerInfo, WorkerStats)


class RemoteWorker:
    """Implements `chiasm.protocol.worker.LateWorker` by calling a worker's server. Lives on one event loop.

    Closing a generation's iterator closes its connection, at which the worker cancels. A request never outlives its
    `timeout_s`, whatever the worker does; a worker that dies ends it with `EngineDeadError` at once.
    """

    def __init__(self, connection: WorkerConnection, info: WorkerInfo, stats: WorkerStats) -> None:
        self._connection = connection
        self._info = info
        self._version = min(info.version, CONTRACT_VERSION)
        self._stats = stats

    @classmethod
    async def connect(
        cls, address: str, *, token: str | None = None, timeout_s: float = _LOOK_TIMEOUT_S
    ) -> "RemoteWorker":
        """Ask a worker who it is. `address` is `http://host:port`, or `unix:` and a path.

        Raises:
            EngineDeadError: Nobody answers there.
            DeadlineExceededError: It did not answer within `timeout_s`.
            ContractVersionError: Its version of the contract is no neighbour of ours.
        """
        connection = WorkerConnection(address, token, {CONTRACT_HEADER: str(CONTRACT_VERSION)})
        try:
            info = _decoded(await connection.get("/info", timeout_s), WorkerInfo)
            check_worker(info.name, info.version)
            stats = _decoded(await connection.get("/stats", timeout_s), WorkerStats)
        except BaseException:
            await connection.aclose()
            raise
        connection.name = info.name
        return cls(connection, info, stats)

    @property
    def info(self) -> WorkerInfo:
        """See `Worker`."""
        return self._info

    def stats(self) -> WorkerStats:
        """The snapshot that `refresh` fetched last; unhealthy when it failed."""
        return self._stats

    async def refresh(self, timeout_s: float = _LOOK_TIMEOUT_S) -> WorkerStats:
        """Fetch a new snapshot. Raises `EngineDeadError` or `DeadlineExceededError` when the worker does not answer."""
        try:
            self._stats = _decoded(await self._connection.get("/stats", timeout_s), WorkerStats)
        except Exception:
            self._stats = msgspec.structs.replace(self._stats, is_healthy=False)
            raise
        return self._stats

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent, None]:
        """See `Worker`."""
        if request.adapter is not None and not self._info.takes_adapters:
            raise UnsupportedFeatureError(f"Worker {self._info.name} computes with no adapters")
        call, num_choices = encode_request(request, self._info.model, self._version), request.sampling.n
        async with self._connection.post(call, request.timeout_s) as channel:
            if not request.stream:
                for event in decode_whole(await self._connection.whole(channel), num_choices):
                    yield event
                return
            decoder, is_finished = StreamDecoder(num_choices), False
            while data := await channel.read():
                for event in decoder.feed(data):
                    is_finished = isinstance(event, RequestFinished)
                    yield event
                if decoder.failure is not None:
                    raise decoder.failure
        if not is_finished:
            raise EngineDeadError(f"Worker {self._info.name} ended a stream without a result")

    async def encode(self, request: EncodeRequest) -> EncodeResponse:
        """See `Worker`."""
        call = encode_request(request, self._info.model, self._version)
        async with self._connection.post(call, request.timeout_s) as channel:
            return decode_encoded(await self._connection.whole(channel), len(request.items))

    async def supply(self, request: SupplyRequest) -> None:
        """See `LateWorker`."""
        async with self._connection.post(encode_supply(request, self._version), request.timeout_s) as channel:
            await self._connection.whole(channel)

    async def forget(self, deletion: Deletion, timeout_s: float) -> tuple[Deleted, ...]:
        """See `Forgetful`."""
        said = msgspec.structs.replace(deletion, version=self._version)
        call = WireRequest(FORGET_PATH, (msgspec.json.encode(said),))
        async with self._connection.post(call, timeout_s) as channel:
            return decode_deleted(await self._connection.whole(channel))

    async def load_adapter(self, load: AdapterLoad, timeout_s: float) -> AdapterInfo:
        """See `Adaptable`."""
        said = msgspec.structs.replace(load, version=self._version)
        call = WireRequest(LOAD_PATH, (msgspec.json.encode(said),))
        async with self._connection.post(call, timeout_s) as channel:
            return decode_adapter(await self._connection.whole(channel))

    async def unload_adapter(self, ref: AdapterRef, timeout_s: float) -> None:
        """See `Adaptable`."""
        call = WireRequest(UNLOAD_PATH, (msgspec.json.encode(ref),))
        async with self._connection.post(call, timeout_s) as channel:
            await self._connection.whole(channel)

    async def memory(self, timeout_s: float) -> tuple[WorkerMemory, ...]:
        """See `Weighable`."""
        return decode_memory(await self._connection.get(MEMORY_PATH, timeout_s))

    async def aclose(self) -> None:
        """Let go of the worker, which lives on; requests still open end with `EngineDeadError`."""
        self._stats = msgspec.structs.replace(self._stats, is_healthy=False)
        await self._connection.aclose()


def _decoded(body: bytes, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise EngineError("The worker's answer cannot be understood", hint="Is it a Chiasm worker?") from error
