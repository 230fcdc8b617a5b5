"""What gateways over one fleet tell each other: deletions and drained workers, and hints about contents."""

import asyncio
import time
from typing import Protocol

import msgspec

from chiasm.errors import DeadlineExceededError
from chiasm.gateway.aliases import MediaAliases
from chiasm.gateway.receipts import ReceiptRing
from chiasm.observability.logs import LOGGER
from chiasm.protocol.deletion import Deleted
from chiasm.protocol.fleet import Concerted
from chiasm.protocol.worker import Worker
from chiasm.sharing.acts import (
    Act,
    DeletionAct,
    DrainAct,
    Notes,
    decode_act,
    decode_notes,
    encode_act,
    encode_notes,
)
from chiasm.sharing.base import FIRST, Entry, Store, order_of
from chiasm.sharing.link import TTL_S, Link

_ACTS = "acts"
_CONTENT = "content"
_MAX_ENTRIES = 256
_MAX_NOTES = 256
_MAX_NOTES_BYTES = 64 * 2**10  # of a round; what others read at once is this times `_MAX_ENTRIES` at most
_CONFIRM_TIMEOUT_S = TTL_S + 1.0
"""After which a gateway that has not confirmed would have been gone if it were dead."""
_LOOK_INTERVAL_S = 0.05
_MAX_DRAINED = 1024


class Forgetting(Protocol):
    """Where a gateway keeps what it has downloaded; `Ingest` is one."""

    def forget(self, *, identity: str | None = None, tenant: str | None = None) -> int:
        """Drop kept downloads of a medium or a tenant; returns how many there were."""
        ...


class Peers:
    """The other gateways, to one of them. A `Participant` of the link; belongs to its event loop.

    Attributes:
        num_learned: Hints about contents from other gateways that were of use.
    """

    def __init__(
        self, link: Link, worker: Worker, aliases: MediaAliases, receipts: ReceiptRing, ingest: Forgetting
    ) -> None:
        self._link = link
        self._fleet = worker if isinstance(worker, Concerted) else None
        self._aliases = aliases
        self._receipts = receipts
        self._ingest = ingest
        self.num_learned = 0
        self._content_at = FIRST
        self._deleted_at = FIRST
        self._is_new = True
        self._drained: dict[str, bool] = {}  # names, also of workers that are away; whether another gateway said so

    async def round(self) -> None:
        """See `Participant`."""
        if self._fleet is not None:
            for name, is_told in self._drained.items():
                self._fleet.drain(name, is_told=is_told)
        if not self._link.is_shared:
            return
        await self._follow_acts()
        if self._fleet is not None:
            await self._exchange_notes(self._fleet)

    def lost(self) -> None:
        """See `Participant`. What is pending is bounded, and told when the store is back."""

    def drain(self, name: str, *, is_over: bool) -> bool:
        """Give a worker no more work here, or work again; returns whether it is, or was drained as, one of its own."""
        if self._fleet is None:
            return False
        is_known = self._fleet.drain(name, is_over=is_over) or (is_over and name in self._drained)
        if is_known:
            self._remember_drain(name, is_over=is_over, is_told=False)
        return is_known

    def _remember_drain(self, name: str, *, is_over: bool, is_told: bool) -> None:
        self._drained.pop(name, None)
        if not is_over:
            self._drained[name] = is_told
            if len(self._drained) > _MAX_DRAINED:
                del self._drained[next(iter(self._drained))]

    async def tell(self, act: Act) -> tuple[Deleted, ...]:
        """Have all gateways do what this one has done, and wait until each says that it has.

        One entry per gateway; those with an `error` have not said so. Nothing where this one is alone.
        """
        if not self._link.is_shared:
            return ()
        try:
            position = await self._link.call(lambda store: store.publish(_ACTS, encode_act(act)))
            if isinstance(act, DeletionAct):
                self._deleted_at = position
                await self._link.call(lambda store: store.clear(_CONTENT))
        except ConnectionError:
            return (Deleted(worker="store", error="store_unavailable"),)
        return await self._confirmed(order_of(position))

    async def _confirmed(self, position: tuple[int, int]) -> tuple[Deleted, ...]:
        deadline_s = time.monotonic() + _CONFIRM_TIMEOUT_S
        while True:
            silent = [name for name, one in self._link.others.items() if _order(one.acts_at) < position]
            if not silent or self._link.is_degraded or time.monotonic() >= deadline_s:
                break
            await asyncio.sleep(_LOOK_INTERVAL_S)
        if self._link.is_degraded:
            return (Deleted(worker="store", error="store_unavailable"),)
        errors = dict.fromkeys(silent, DeadlineExceededError.code)
        return tuple(Deleted(worker=name, error=errors.get(name)) for name in self._link.others)

    async def _follow_acts(self) -> None:
        """Carry out what others did, in their order. The oldest are those of a day ago: a new gateway drains as all."""
        while True:
            entries = await self._link.call(self._read_acts)
            for entry in entries:
                act = decode_act(entry.payload)
                if act is not None and entry.by != self._link.name:
                    await self._carry_out(act, entry.position)
                self._link.presence = msgspec.structs.replace(self._link.presence, acts_at=entry.position)
            if len(entries) < _MAX_ENTRIES:
                self._is_new = False
                return

    async def _read_acts(self, store: Store) -> list[Entry]:
        return await store.read(_ACTS, self._link.presence.acts_at, _MAX_ENTRIES)

    async def _carry_out(self, act: Act, position: str) -> None:
        if isinstance(act, DrainAct):
            self._remember_drain(act.worker, is_over=act.is_over, is_told=True)
            if self._fleet is not None:
                self._fleet.drain(act.worker, is_over=act.is_over, is_told=True)
            return
        deletion = act.deletion
        if deletion.identity is not None:
            self._aliases.forget_identity(deletion.identity)
            self._ingest.forget(identity=deletion.identity)
        if act.tenant is not None:
            self._aliases.forget_tenant(act.tenant)
            self._receipts.forget_tenant(act.tenant)
            self._ingest.forget(tenant=act.tenant)
        if self._fleet is not None:
            self._fleet.forget_known(deletion)
        self._deleted_at = position
        if not self._is_new:  # a new gateway has told nobody anything
            await self._link.call(lambda store: store.clear(_CONTENT))
            LOGGER.info("Deletion by an operator at another gateway: carried out")

    async def _exchange_notes(self, fleet: Concerted) -> None:
        entries = await self._link.call(lambda store: store.read(_CONTENT, self._content_at, _MAX_ENTRIES))
        for entry in entries:
            self._content_at = entry.position
            notes = decode_notes(entry.payload) if entry.by != self._link.name else None
            if notes is not None and _order(notes.acts_at) >= order_of(self._deleted_at):
                self.num_learned += fleet.learn(notes.notes)
        taken = fleet.take_notes(_MAX_NOTES, _MAX_NOTES_BYTES)
        if taken is not None:
            payload = encode_notes(Notes(self._link.presence.acts_at, taken))
            await self._link.call(lambda store: store.publish(_CONTENT, payload))


def _order(position: str) -> tuple[int, int]:
    """As `order_of`, for what another gateway says: nonsense comes before everything."""
    try:
        return order_of(position)
    except ValueError:
        return (0, 0)
