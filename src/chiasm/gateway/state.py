"""What all routes share."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from starlette.types import Scope

from chiasm.asgi.admission import Admission, Seat
from chiasm.asgi.interruptions import Interruptions
from chiasm.errors import ChiasmError, MediaError
from chiasm.gateway.adapters import Adapters
from chiasm.gateway.aliases import MediaAliases
from chiasm.gateway.autoscaling import autoscaling_levels
from chiasm.gateway.cache_scopes import CacheScopes
from chiasm.gateway.exchange.ids import RequestIds
from chiasm.gateway.media_keys import MediaKeys
from chiasm.gateway.peers import Peers
from chiasm.gateway.receipts import ReceiptRing
from chiasm.gateway.refusals import Refusals
from chiasm.gateway.tracing import Tracing
from chiasm.media.reference import MediaReference
from chiasm.media.spool import SpoolLease
from chiasm.observability.fetch_metrics import FetchLookups
from chiasm.observability.logs import log_receipt
from chiasm.observability.memory import MemoryPart, WorkerMemory, allocator_memory, process_memory
from chiasm.observability.metrics import GatewayMetrics
from chiasm.observability.receipt import Receipt, StageClock
from chiasm.protocol.fleet import Fleetlike, Renewable, Replaceable
from chiasm.protocol.media import MediaItem
from chiasm.protocol.memory import Weighable
from chiasm.protocol.worker import Worker
from chiasm.settings import AdapterSettings, GatewaySettings
from chiasm.sharing.link import Link
from chiasm.sharing.local import LocalStore
from chiasm.tenancy.audit import AuditLog
from chiasm.tenancy.leases import Leases
from chiasm.tenancy.tenants import Tenants

_MEMORY_TIMEOUT_S = 2.0

_NO_ADAPTERS = AdapterSettings()


class Ingest(Protocol):
    """Where media come from; `chiasm.media.ingest.MediaIngest`, or a stand-in in tests."""

    def lease(self) -> SpoolLease | None:
        """Begin to hold media in files for one request; None where items carry their bytes."""
        ...

    @property
    def spooled_bytes(self) -> int:
        """What the files of all media take."""
        ...

    @property
    def kept_bytes(self) -> int:
        """What kept downloads take."""
        ...

    @property
    def fetch_lookups(self) -> Mapping[str, int]:
        """What came of looking for kept downloads, by outcome."""
        ...

    def num_spooled(self, identity: str) -> int:
        """Files that hold a medium's bytes for requests under way."""
        ...

    def forget(self, *, identity: str | None = None, tenant: str | None = None) -> int:
        """Drop kept downloads of a medium or a tenant; returns how many there were."""
        ...

    async def collect(
        self,
        references: Sequence[MediaReference],
        deadline_s: float,
        clock: StageClock,
        lease: SpoolLease | None,
        tenant: str,
    ) -> list[MediaItem]:
        """Return one checked item per reference, in order. Raises `MediaError`. Safe to cancel."""
        ...

    async def collect_each(
        self,
        references: Sequence[MediaReference],
        deadline_s: float,
        clock: StageClock,
        lease: SpoolLease | None,
        tenant: str,
    ) -> list[MediaItem | MediaError]:
        """As `collect`, but a reference that cannot be used comes back as its error."""
        ...


class Gateway:
    """One served model and everything that is counted about it. Lives on one event loop.

    Attributes:
        renewable: Who runs the worker processes; None where there are none, or others run them.
        encoders_wanted: How many an autoscaler wants; None without one.
        replaceable: Who can start a successor of this server; None where it is a part of another program.
        link: The way to what it shares with other gateways; whoever runs the gateway keeps and closes it.
    """

    def __init__(
        self,
        worker: Worker,
        ingest: Ingest,
        settings: GatewaySettings,
        adapters: AdapterSettings = _NO_ADAPTERS,
        link: Link | None = None,
    ) -> None:
        self.worker = worker
        self.ingest = ingest
        self.settings = settings
        self.admission = Admission(settings.max_running_requests, settings.max_queued_requests)
        self.tenants = Tenants(settings)
        self.link = link or Link(LocalStore("gateway"))
        self.link.presence = msgspec.structs.replace(self.link.presence, is_serving=True)
        self.leases = Leases(self.link, self.tenants.meters)
        self.tenants.adopt = self.leases.adopt
        self.link.add(self.leases)
        self.audit = AuditLog(settings.audit_file)
        self.receipts = ReceiptRing(settings.max_receipts, settings.receipt_ttl_s)
        self.aliases = MediaAliases()
        self.peers = Peers(self.link, worker, self.aliases, self.receipts, ingest)
        self.link.add(self.peers)
        self.adapters = Adapters(worker, adapters.max_loaded)
        self.scopes = CacheScopes(settings)
        self.ids = RequestIds()
        self.media_keys = MediaKeys()
        self.interruptions = Interruptions()
        self.metrics = GatewayMetrics(self._levels, self._worker_levels, self._worker_totals)
        self.metrics.registry.register(FetchLookups(lambda: ingest.fetch_lookups))
        self.tracing = Tracing()
        self.refusals = Refusals(self.metrics, settings.refusal_delay_s, self.tenants.title)
        self.renewable: Renewable | None = None
        self.encoders_wanted: int | None = None
        self.replaceable: Replaceable | None = None

    @property
    def is_ready(self) -> bool:
        """Whether new requests are taken."""
        return not self.admission.is_closed and self.worker.stats().is_healthy

    def drain(self) -> None:
        """Take no new requests; those open may finish. `admission.wait_idle` says when they have."""
        self.admission.close()

    def abort(self) -> None:
        """End all open requests now, each with `ShuttingDownError`, and give the refusals that wait."""
        self.interruptions.abort()
        self.refusals.hurry()

    async def cover(self, scope: Scope) -> None:
        """Before `open`: ask other gateways for what the request's tenant may use, where this one has none left."""
        if self.link.is_shared:
            await self.leases.cover(self.tenants.meter(scope["tenant"]))

    def open(self, scope: Scope) -> Seat:
        """Let a request in, for a block. Raises `RateLimitedError`; entering it, what `Admission.open` raises."""
        meter = self.tenants.admit(scope["tenant"])
        self.tracing.begin(scope["headers"])
        return self.admission.open(meter.share)

    def end(self, endpoint: str, receipt: Receipt, tenant: str, num_streamed_tokens: int = 0) -> None:
        """Record the only ending of a request: counters, receipt, trace, log line, and what its tenant has used.

        What was streamed counts where the request did not finish, and its usage is not known.
        """
        self.metrics.end(endpoint, receipt)
        self.receipts.add(receipt, tenant)
        num_tokens = receipt.num_prompt_tokens + (receipt.num_output_tokens or num_streamed_tokens)
        self.tenants.use(tenant, tokens=num_tokens, visual_tokens=receipt.num_visual_tokens)
        self.tracing.end(endpoint, receipt)
        log_receipt(endpoint, receipt)

    async def weigh(self) -> tuple[WorkerMemory, ...]:
        """What the server's processes take of memory; `/metrics` shows the answer until the next."""
        worker = self.worker
        told: tuple[WorkerMemory, ...] = ()
        if isinstance(worker, Weighable):
            try:
                told = await worker.memory(_MEMORY_TIMEOUT_S)
            except ChiasmError as error:
                told = (WorkerMemory(worker=worker.info.name, error=error.code),)
        if isinstance(worker, Fleetlike):
            told = (await asyncio.to_thread(self._weigh_gateway), *told)
        self.metrics.memory = told
        return told

    def _weigh_gateway(self) -> WorkerMemory:
        spool = MemoryPart(name="spool", kind="shared", used_bytes=self.ingest.spooled_bytes)
        kept = MemoryPart(name="downloads", kind="cache", used_bytes=self.ingest.kept_bytes)
        parts = (spool, kept)
        return WorkerMemory(worker="gateway", process=process_memory(), allocator=allocator_memory(), parts=parts)

    def _levels(self) -> Mapping[str, float]:
        wanted = {} if self.encoders_wanted is None else {"encoders_wanted": self.encoders_wanted}
        return {
            "requests_open": self.admission.num_open,
            "requests_running": self.admission.num_running,
            "requests_queued": self.admission.num_queued,
            "refusals_waiting": self.refusals.num_waiting,
            "ready": self.is_ready,
            "gateways": self.link.num_gateways,
            "store_up": self.link.is_up,
            "hints_learned": self.peers.num_learned,
            **autoscaling_levels(self.admission, self.worker, self.settings.ttft_slo_s),
            **wanted,
        }

    def _worker_levels(self) -> Mapping[str, float]:
        stats = msgspec.structs.asdict(self.worker.stats())
        return {name.removeprefix("num_"): float(value) for name, value in stats.items() if name != "totals"}

    def _worker_totals(self) -> Mapping[str, float]:
        return self.worker.stats().totals
