"""The connector in vLLM's scheduler: tells what a producer published; lets a consumer's checked requests in."""

import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from vllm.logger import init_logger

from chiasm.connectors.shm.transport import ShmTransport
from chiasm.connectors.tcp.client import Client
from chiasm.engines.vllm.ec.admission import Admission
from chiasm.engines.vllm.ec.announcement import FIELD, Expected, sealed
from chiasm.engines.vllm.ec.counters import Counters
from chiasm.engines.vllm.ec.engine_folder import OwnedFolder, engine_folder
from chiasm.engines.vllm.ec.forget_mark import ForgetMark, mark_folder
from chiasm.engines.vllm.ec.options import EcOptions
from chiasm.engines.vllm.ec.pulls import Fetch, Pulls
from chiasm.engines.vllm.ec.receipts import read_receipt
from chiasm.engines.vllm.ec.verified_store import StoredEmbedding, VerifiedStore
from chiasm.engines.vllm.items import ItemReader
from chiasm.engines.vllm.metadata import StepOrders, StepReport
from chiasm.errors import ChiasmError

if TYPE_CHECKING:
    from vllm.v1.request import Request

logger = init_logger("vllm.chiasm.ec")
_IDLE_WAIT_S = 0.002
_MAX_REMEMBERED = 2**16
_NOT_LOADED = ("transfer_failed", "a worker could not load a checked embedding")


class PublishingScheduler:
    """A producer's scheduler: what a finished request has encoded is told in the response."""

    def __init__(self, options: EcOptions, engine: str, items: ItemReader) -> None:
        self._folder = engine_folder(options.directory, engine)
        self._items = items
        self._totals: dict[str, float] = {}
        self._seen: set[str] = set()
        self._wanted: set[str] = set()
        self.counters = Counters()

    def begin(self, request: "Request") -> None:
        """Have everything of a request on offer, also what vLLM needs not encode again."""
        if request.request_id not in self._seen:
            self._seen.add(request.request_id)
            self._wanted |= {feature.identifier for feature in request.mm_features}

    def orders(self, orders: StepOrders, *, is_executed: bool) -> None:
        """Add what the next step must keep on offer; kept for later when no step follows."""
        if is_executed:
            orders.wanted, self._wanted = self._wanted, set()

    def finished(self, request: "Request") -> dict[str, Any] | None:
        """The response's `ec_transfer_params`: vLLM's entry for each item, and our announcement beside it."""
        self._seen.discard(request.request_id)
        entries = self._items.entries(request.mm_features)
        for identity, entry in entries.items():
            entry[FIELD] = self._announced(identity, entry["metadata"])
        return entries or None

    def _announced(self, identity: str, metadata: dict[str, Any]) -> dict[str, Any]:
        receipt = read_receipt(self._folder, identity, time.monotonic())
        if receipt is not None:
            self._count(receipt.totals)
        if receipt is None or receipt.announcement is None:
            error = "embedding_unavailable" if receipt is None else receipt.error
            logger.warning("An encoded embedding is not on offer: %s", error)
            return {"error": error}
        said: dict[str, Any] = msgspec.to_builtins(sealed(receipt.announcement, identity, metadata))
        return said

    def _count(self, totals: dict[str, float]) -> None:
        for name, value in totals.items():
            self.counters.add(name, max(0.0, value - self._totals.get(name, 0.0)))
            self._totals[name] = max(value, self._totals.get(name, 0.0))


class ConsumingScheduler:
    """A consumer's scheduler: requests wait, are let in, or fail alone."""

    def __init__(self, options: EcOptions, engine: str, expected: Expected, items: ItemReader) -> None:
        self._folder = OwnedFolder(mark_folder(options.directory, engine))
        self._mark = ForgetMark(self._folder.path)
        self._transport = ShmTransport(max_bytes=options.max_bytes)
        self._store = VerifiedStore(self._transport, options.max_bytes)
        self._client = Client()
        self.counters = Counters()
        self._pulls = Pulls(self._fetches(options), self._store, self.counters)
        self._admission = Admission(self._store, self._pulls, self.counters, expected, wait_s=options.wait_s)
        self._items = items
        self._current = ""
        self._failed: set[str] = set()
        self._loads: dict[str, StoredEmbedding] = {}
        self._reloads: dict[str, StoredEmbedding] = {}
        self._loading: dict[str, StoredEmbedding] = {}
        self._resident: OrderedDict[str, StoredEmbedding | None] = OrderedDict()
        self._num_evicted = 0

    def is_ready(self, request: "Request", num_computed_tokens: int) -> bool:
        """Whether the request may enter the next step; one that never can is told by `take_failed`."""
        self._forget_if_told()
        self._current = request.request_id
        features = request.mm_features
        if request.request_id in self._failed:
            return False
        if features[-1].mm_position.offset + features[-1].mm_position.length <= num_computed_tokens:
            return True
        try:
            wanted = [item for item in map(self._items.wanted, features) if item.end > num_computed_tokens]
            is_ready = self._admission.is_ready(request.request_id, wanted, request.ec_transfer_params)
        except ChiasmError as error:
            self._fail(request.request_id, error.code, error.message)
            return False
        except Exception:
            logger.exception("A request's embeddings could not be looked at")
            self._fail(request.request_id, "internal_error", "see above")
            return False
        if is_ready:
            for item in wanted:
                self._replace_if_stale(item.identity)
        return is_ready

    def is_held(self, identity: str) -> bool:
        """Whether the request that was asked about last takes this item from the store instead of encoding it."""
        return self._admission.held(self._current, identity) is not None

    def load(self, request: "Request", index: int) -> None:
        """There is room for an item in vLLM's encoder cache now."""
        identity = request.mm_features[index].identifier
        stored = self._admission.held(request.request_id, identity)
        if stored is not None:
            self._loads[identity] = stored

    def orders(self, orders: StepOrders, *, is_executed: bool) -> None:
        """Add the step's loads. Without a step they are kept, and there is time to wait for a pull."""
        self._forget_if_told()
        if not is_executed:
            self._pulls.wait_any(_IDLE_WAIT_S)
            return
        orders.loads, self._loads = self._loads, {}
        orders.reloads, self._reloads = self._reloads, {}
        for identity, stored in (orders.loads | orders.reloads).items():
            if identity not in self._loading and self._store.hold(identity) is not None:
                self._loading[identity] = stored

    def reported(self, report: StepReport) -> None:
        """The workers have loaded, or could not; then `CheckedScheduler` has ended the requests already."""
        for identity in report.loaded | report.failed:
            stored = self._loading.pop(identity, None)
            if stored is not None:
                self._store.release(identity)
            self._remember(identity, None if identity in report.failed else stored)
            if identity in report.failed:
                self._store.discard(identity)

    def ended(self, request_ids: Iterable[str]) -> None:
        """`CheckedScheduler` ends these requests, since an embedding of theirs could not be loaded."""
        for request_id in request_ids:
            self._note_failure(request_id, *_NOT_LOADED)

    def take_failed(self) -> set[str]:
        """Requests that must end with an error."""
        failed, self._failed = self._failed, set()
        return failed

    def freed(self, request: "Request", index: int) -> None:
        """An item is needed no longer."""
        self._admission.release_item(request.request_id, request.mm_features[index].identifier)

    def finished(self, request: "Request") -> None:
        """The request has ended, however."""
        self._failed.discard(request.request_id)
        self._admission.forget(request.request_id)

    def take_counts(self) -> dict[str, float]:
        """What was counted since the last time."""
        num_evicted, self._num_evicted = self._num_evicted, self._store.num_evicted
        self.counters.add("evicted", self._num_evicted - num_evicted)
        return self.counters.take()

    def close(self) -> None:
        """Let go of threads, connections and shared memory."""
        self._pulls.close()
        self._client.close()
        self._transport.close()
        self._folder.close()

    def _fetches(self, options: EcOptions) -> dict[str, Fetch]:
        fetches: dict[str, Fetch] = {
            "shm": lambda address, num_bytes, timeout_s: self._transport.get(address, num_bytes, timeout_s=timeout_s)
        }
        if options.transport == "tcp":
            fetches["tcp"] = self._client.get
        return fetches

    def _fail(self, request_id: str, code: str, message: str) -> None:
        self._note_failure(request_id, code, message)
        self._failed.add(request_id)

    def _note_failure(self, request_id: str, code: str, message: str) -> None:
        self.counters.add(f"refused:{code}")
        logger.warning("Request %s fails alone: %s (%s)", request_id, message, code)

    def _forget_if_told(self) -> None:
        if self._mark.is_set() and not self._store.forget():
            self._mark.clear()

    def _replace_if_stale(self, identity: str) -> None:
        """Load anew where the encoder cache may hold something else: a failed load, or another grid."""
        held = self._admission.held(self._current, identity)
        if held is None or identity not in self._resident:
            return
        resident = self._resident[identity]
        if resident is None or resident.layout != held.layout or resident.metadata != held.metadata:
            self._reloads[identity] = held

    def _remember(self, identity: str, stored: StoredEmbedding | None) -> None:
        self._resident[identity] = stored
        self._resident.move_to_end(identity)
        while len(self._resident) > _MAX_REMEMBERED:
            self._resident.popitem(last=False)
