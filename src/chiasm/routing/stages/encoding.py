"""The encode stage: one call to one encoder, checked, and remembered for others."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import closing
from itertools import count
from math import prod

import msgspec

from chiasm.errors import ChiasmError, LayoutMismatchError
from chiasm.protocol.contract import HANDLE_VERSION
from chiasm.protocol.media import EmbeddingHandle, MediaItem
from chiasm.protocol.worker import EncodeRequest, EncodeResponse, WorkerInfo
from chiasm.routing.clock import Clock
from chiasm.routing.costs.model import CostModel
from chiasm.routing.costs.spans import ENCODE_STAGES, busy_s, gaps
from chiasm.routing.fleet import Fleet
from chiasm.routing.member import Member
from chiasm.routing.stages.flights import Delivered, Flight, Flights

logger = logging.getLogger(__name__)
_MAX_RENEWALS = 16
_RENEWAL_TIMEOUT_S = 5.0


class EncodeStage:
    """Calls encoders. What they deliver is known to the fleet before whoever asked goes on."""

    def __init__(self, fleet: Fleet, costs: CostModel, clock: Clock) -> None:
        self._fleet = fleet
        self._costs = costs
        self._clock = clock
        self.flights = Flights()
        self._num_renewals = count()
        self._renewals: set[asyncio.Task[None]] = set()

    def start(
        self, worker: str, items: Mapping[str, MediaItem], request_id: str, limit_s: float, cache_salt: str
    ) -> Flight:
        """Ask a worker for embeddings; the flight must be waited for at once."""
        request = EncodeRequest(
            request_id=request_id, items=tuple(items.values()), cache_salt=cache_salt, timeout_s=limit_s
        )
        flight = self.flights.start(worker, tuple(items), self._call(worker, items, request), cache_salt)
        self._count(worker, items, flight)
        return flight

    def renew(self, item: MediaItem, cache_salt: str) -> None:
        """Have an embedding that is in use offered for longer, beside all else, when half its time is over.

        Its producer is asked to offer again what it has, by the handle alone: when it has it no longer, nothing is
        encoded, and the handle expires.
        """
        if len(self._renewals) >= _MAX_RENEWALS:
            return
        offered = self._fleet.embeddings.to_renew(item.identity, cache_salt)
        if offered is None:
            return
        member = next((one for one in self._fleet.with_role("encode") if one.name == offered.producer), None)
        if member is None:
            return
        request = EncodeRequest(
            request_id=f"renewal-{next(self._num_renewals)}",
            items=(msgspec.structs.replace(item, source=offered.handle),),
            cache_salt=cache_salt,
            timeout_s=_RENEWAL_TIMEOUT_S,
        )
        task = asyncio.create_task(self._renew(member, request))
        self._renewals.add(task)
        task.add_done_callback(self._renewals.discard)

    async def aclose(self) -> None:
        """Cancel what is under way."""
        renewals = list(self._renewals)
        for task in renewals:
            task.cancel()
        await asyncio.gather(*renewals, return_exceptions=True)
        await self.flights.aclose()

    async def _renew(self, member: Member, request: EncodeRequest) -> None:
        (item,), start_s = request.items, self._clock.now_s()
        try:
            with closing(member.patience(request.timeout_s)) as patience, patience:
                response = await member.worker.encode(request)
            handle = checked_handles({item.identity: item}, response, member.info)[item.identity]
        except ChiasmError as error:
            logger.info("Worker '%s' does not renew an embedding: %s", member.name, error.code)
            return
        self._fleet.embeddings.offered(item.identity, handle, member.name, request.cache_salt, start_s)

    def _count(self, worker: str, items: Mapping[str, MediaItem], flight: Flight) -> None:
        """Have the call seen as work of its worker from now on, by plans that are made before it is on its way, too."""
        member, costs = self._fleet.find(worker), self._costs.costs()
        if member is None:
            return
        backlog = member.encoding
        work_s = sum(costs.encode_s(worker, item.width * item.height) for item in items.values())
        backlog.begin(work_s)
        flight.task.add_done_callback(lambda _: backlog.end(work_s))

    async def _call(self, worker: str, items: Mapping[str, MediaItem], request: EncodeRequest) -> Delivered:
        member, start_s = self._fleet.get(worker), self._clock.now_s()
        with closing(member.patience(request.timeout_s)) as patience, patience:
            response = await member.worker.encode(request)
        handles = checked_handles(items, response, member.info)
        for identity, handle in handles.items():
            self._fleet.embeddings.offered(identity, handle, member.name, request.cache_salt, start_s)
        self._learn(member, items, handles, response, self._clock.now_s() - start_s)
        spans = [span.shifted(start_s) for span in response.spans]
        return Delivered(handles=handles, spans=(*spans, *gaps(spans, start_s, self._clock.now_s(), "transfer")))

    def _learn(
        self,
        member: Member,
        items: Mapping[str, MediaItem],
        handles: Mapping[str, EmbeddingHandle],
        response: EncodeResponse,
        call_s: float,
    ) -> None:
        working_s = busy_s(response.spans, ENCODE_STAGES)
        for identity, item in items.items():
            self._costs.see_picture(item.width * item.height, handles[identity].metadata.num_embeddings)
        if working_s:  # else the worker had them
            pixels = sum(item.width * item.height for item in items.values())
            self._costs.see_encode(member.name, len(items), pixels, working_s, self._clock.now_s())
            self._costs.see_hop(max(call_s - busy_s(response.spans, (*ENCODE_STAGES, "encode_queue")), 0.0))


def checked_handles(
    items: Mapping[str, MediaItem], response: EncodeResponse, info: WorkerInfo
) -> dict[str, EmbeddingHandle]:
    """Handles by identity. Raises `LayoutMismatchError` when the answer is not one to the question."""
    if len(response.handles) != len(items):
        raise LayoutMismatchError(f"An encoder answered {len(items)} items with {len(response.handles)} handles")
    for identity, handle in zip(items, response.handles, strict=True):
        found = handle.metadata
        merged = None if found.grid_thw is None else prod(found.grid_thw) // found.merge_size**2
        compared = {
            "version": (found.version, HANDLE_VERSION),
            "identity": (found.identity, identity),
            "rows": (found.shape[0], found.num_embeddings),
            "grid product": (merged, found.num_embeddings if merged is not None else None),
            "model revision": (found.model_revision, info.model_revision),
            "processor revision": (found.processor_revision, info.processor_revision),
        }
        for name, (given, wanted) in compared.items():
            if given != wanted:
                raise LayoutMismatchError(f"Embedding {identity[:12]}: {name} is {given}, expected {wanted}")
    return dict(zip(items, response.handles, strict=True))
