"""The wrappers through which faults come in: around transports, and around workers as the router sees them."""

from collections.abc import AsyncGenerator, Collection, Iterable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, cast

from chiasm.connectors.base import Buffer, Transport
from chiasm.connectors.faulty import FaultyTransport
from chiasm.faults.fault import Direction, Fault, Tensor
from chiasm.protocol.generation import GenerateEvent, GenerateRequest
from chiasm.protocol.media import MediaItem
from chiasm.protocol.worker import (
    EncodeRequest,
    EncodeResponse,
    LateWorker,
    SupplyRequest,
    Worker,
    WorkerInfo,
    WorkerStats,
)
from chiasm.routing.remote import RemoteWorker


class Watch:
    """Knows the present fault and tells the target by its pictures, which no other request shows."""

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self._identities: frozenset[str] | None = frozenset()
        self._keys: dict[str, str] = {}

    @contextmanager
    def over(self, fault: Fault, identities: Collection[str] | None) -> Iterator[None]:
        """Let requests with these pictures meet the fault inside the block; None: all requests, with none as well."""
        self.fault, self._identities = fault, None if identities is None else frozenset(identities)
        try:
            yield
        finally:
            self.fault, self._identities = None, frozenset()
            self._keys.clear()

    def fault_for(self, items: Collection[MediaItem]) -> Fault | None:
        """The fault that a call about these items is to meet."""
        return self.fault_about(item.identity for item in items)

    def fault_about(self, identities: Iterable[str]) -> Fault | None:
        """The fault that a call about pictures with these identities is to meet."""
        known = self._identities
        is_target = known is None or any(identity in known for identity in identities)
        return self.fault if is_target else None

    def noted(self, address: str, key: str) -> str:
        """Remember what is offered at an address; returns the address."""
        if self._identities:
            self._keys[address] = key
        return address

    def fault_at(self, address: str, tensor: Tensor) -> Fault | None:
        """The fault that taking what is offered at an address is to meet."""
        return self.fault_of(self._keys.get(address, ""), tensor)

    def fault_of(self, key: str, tensor: Tensor) -> Fault | None:
        """The fault that offering under a key is to meet. Keys and values do not say whose they are: the target's."""
        known = self._identities
        is_target = known is None or tensor == "kv" or key.partition(":")[0] in known
        return self.fault if is_target else None


class WatchedTransport:
    """A `Transport` around that of one worker, which offers one kind of tensors and takes one kind."""

    def __init__(self, inner: Transport, watch: Watch, offers: Tensor, takes: Tensor) -> None:
        self._inner = inner
        self._watch = watch
        self._offers: Tensor = offers
        self._takes: Tensor = takes

    @property
    def kind(self) -> str:
        """That of the transport inside."""
        return self._inner.kind

    @property
    def num_offered(self) -> int:
        """That of the transport inside."""
        return self._inner.num_offered

    @property
    def offered_bytes(self) -> int:
        """See `Transport.offered_bytes`."""
        return self._inner.offered_bytes

    def put(self, key: str, data: Buffer, *, ttl_s: float) -> str:
        """See `Transport.put`."""
        transport = self._tampered(self._watch.fault_of(key, self._offers), "put", self._offers)
        return self._watch.noted(transport.put(key, data, ttl_s=ttl_s), key)

    def get(self, address: str, num_bytes: int, *, timeout_s: float) -> Buffer:
        """See `Transport.get`."""
        transport = self._tampered(self._watch.fault_at(address, self._takes), "get", self._takes)
        return transport.get(address, num_bytes, timeout_s=timeout_s)

    def release(self, address: str, *, timeout_s: float) -> None:
        """See `Transport.release`."""
        self._inner.release(address, timeout_s=timeout_s)

    def drop(self, key: str) -> bool:
        """See `Transport.drop`."""
        return self._inner.drop(key)

    def close(self) -> None:
        """See `Transport.close`."""
        self._inner.close()

    def _tampered(self, fault: Fault | None, direction: Direction, tensor: Tensor) -> Transport:
        tampering = fault.tampering(direction, tensor) if fault is not None else None
        return self._inner if tampering is None else FaultyTransport(self._inner, [tampering])


class WatchedWorker:
    """A `LateWorker` around one of the fleet's, as far as that is one."""

    def __init__(self, name: str, inner: Worker, watch: Watch) -> None:
        self._name = name
        self._inner = inner
        self._watch = watch

    @property
    def info(self) -> WorkerInfo:
        """See `Worker`."""
        return self._inner.info

    def stats(self) -> WorkerStats:
        """See `Worker`."""
        return self._inner.stats()

    async def encode(self, request: EncodeRequest) -> EncodeResponse:
        """See `Worker`."""
        fault = self._watch.fault_for(request.items)
        if fault is None:
            return await self._inner.encode(request)
        await fault.encode_called(self._name)
        return await fault.encoded(self._name, await self._inner.encode(request))

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent, None]:
        """See `Worker`."""
        fault = self._watch.fault_for(request.items)
        if fault is not None:
            await fault.generate_called(self._name, request)
        async with aclosing(cast("Any", self._inner.generate(request))) as events:
            async for event in events:
                yield event if fault is None else await fault.event(self._name, request, event)

    async def supply(self, request: SupplyRequest) -> None:
        """See `LateWorker`."""
        fault = self._watch.fault_about(handle.metadata.identity for handle in request.handles.values())
        if fault is not None:
            await fault.supply_called(self._name)
        await cast("LateWorker", self._inner).supply(request)

    async def aclose(self) -> None:
        """See `Worker`."""
        await self._inner.aclose()


class WatchedRemote(WatchedWorker):
    """Around a worker of another process, whose statistics have to be fetched."""

    def __init__(self, name: str, inner: RemoteWorker, watch: Watch) -> None:
        super().__init__(name, inner, watch)
        self._remote = inner

    async def refresh(self) -> object:
        """See `RemoteWorker.refresh`."""
        return await self._remote.refresh()
