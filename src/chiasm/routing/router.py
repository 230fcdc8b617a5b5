"""A fleet that looks like one worker."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator

import msgspec

from chiasm.errors import (
    ChiasmError,
    DeadlineExceededError,
    EngineDeadError,
    HandleExpiredError,
    UnsupportedFeatureError,
)
from chiasm.observability.memory import WorkerMemory
from chiasm.protocol.adapters import AdapterInfo, AdapterLoad, AdapterRef
from chiasm.protocol.deletion import Deleted, Deletion
from chiasm.protocol.fleet import FleetState
from chiasm.protocol.generation import GenerateEvent, GenerateRequest
from chiasm.protocol.memory import Weighable
from chiasm.protocol.worker import EncodeRequest, EncodeResponse, Role, WorkerInfo, WorkerStats
from chiasm.routing.adapters import load_everywhere, unload_everywhere
from chiasm.routing.clock import Clock, SystemClock
from chiasm.routing.costs.model import CostModel, StageCosts
from chiasm.routing.coverage.notes import ContentNotes
from chiasm.routing.deletions import forget_everywhere
from chiasm.routing.fan_out import FanOut
from chiasm.routing.fleet import Fleet
from chiasm.routing.health import Health
from chiasm.routing.journey import Journey
from chiasm.routing.member import Member
from chiasm.routing.parts import RouterParts
from chiasm.routing.pictures import Pictures
from chiasm.routing.policies.base import Policy, spread
from chiasm.routing.policies.registry import make_policy
from chiasm.routing.recovery import Ladder
from chiasm.routing.stages.encoding import EncodeStage
from chiasm.routing.stages.generation import GenerateStage
from chiasm.routing.view import WorkerView
from chiasm.settings import RoutingSettings

_NAME = "router"
_ROLES: tuple[Role, ...] = ("encode", "prefill", "decode")


class Router:
    """Implements `chiasm.protocol.worker.Worker` over a fleet. Belongs to one event loop.

    Members come and go by `fleet.add` and `fleet.remove`; `start` begins to look after them. At least one must have
    joined before `info` is asked for.
    """

    def __init__(
        self,
        settings: RoutingSettings,
        *,
        clock: Clock | None = None,
        policy: Policy | None = None,
        prior: StageCosts | None = None,
    ) -> None:
        """Route among nobody yet; `prior` has measured stage costs to start from."""
        clock = clock or SystemClock()
        costs = CostModel(prior, settings.retry_slow_encoder_s)
        self.fleet = Fleet(settings, clock)
        self.health = Health(self.fleet, settings, clock)
        self._info: WorkerInfo | None = None
        self._info_of: object = None
        self._parts = RouterParts(
            settings=settings,
            clock=clock,
            fleet=self.fleet,
            policy=policy or make_policy(settings),
            costs=costs,
            encode=EncodeStage(self.fleet, costs, clock),
            generate=GenerateStage(costs, clock),
        )
        quarantine = self._parts.quarantine
        self.notes = ContentNotes(self.fleet.embeddings, self.fleet.prefixes, quarantine, self._is_shared)

    def start(self) -> None:
        """Begin to look after the members, on the running event loop."""
        self.health.start()

    @property
    def info(self) -> WorkerInfo:
        """The fleet as one worker; that of its last members while it has none.

        Raises:
            EngineDeadError: Nobody has joined yet.
        """
        if self._info_of is not self.fleet.members and self.fleet.members:
            self._info, self._info_of = _joint_info([one.info for one in self.fleet.members]), self.fleet.members
        if self._info is None:
            raise EngineDeadError("The fleet has no members yet")
        return self._info

    def stats(self) -> WorkerStats:
        """Sums over the members. Open requests are the router's own: each is one here, wherever its stages run."""
        stats = [member.worker.stats() for member in self.fleet.members]
        sums = {
            field: sum(getattr(one, field) for one in stats)
            for field in WorkerStats.__struct_fields__
            if field.startswith("num_")
        }
        totals: Counter[str] = Counter()
        for one in stats:
            totals.update(one.totals)
        totals["hints_skipped"] = self.notes.num_skipped
        own = {
            **self._parts.counts,
            **self._parts.costs.totals,
        }  # workers count under some of these names, too, and do not see the whole
        sums["num_open_requests"] = self._parts.num_open
        is_healthy = bool(self.fleet.with_role("prefill") and self.fleet.with_role("decode"))
        return WorkerStats(is_healthy=is_healthy, totals={**totals, **own}, **sums)

    def fleet_state(self) -> FleetState:
        """See `Fleetlike`."""
        settings = self._parts.settings
        members = tuple(member.snapshot() for member in self.fleet.members)
        return FleetState(topology=settings.topology, policy=settings.policy, members=members)

    def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent, None]:
        """See `Worker`. Routes come between the events: first, after each failed attempt, and with the end."""
        return Journey(self._parts, request).events()

    async def encode(self, request: EncodeRequest) -> EncodeResponse:
        """See `Worker`."""
        start_s = self._parts.clock.now_s()
        ladder = Ladder(self._parts.settings, self._parts.clock, request.timeout_s)
        pictures = Pictures(request.items, self.fleet.embeddings, request.cache_salt)
        fan_out = FanOut(self._parts, request.request_id, pictures, ladder)
        with self._parts.opened():
            while missing := [view for view in pictures.views() if not view.has_handle]:
                encoders = self._encoders(ladder)
                if not encoders or ladder.local_only:
                    ladder.nobody_left(HandleExpiredError("No encoder delivered the pictures' embeddings"))
                await fan_out.run(spread(missing, encoders, self._parts.view()))
        handles = [pictures.handle(item.identity) for item in request.items]
        return EncodeResponse(
            handles=tuple(handle for handle in handles if handle is not None),
            spans=tuple(span.shifted(-start_s) for span in fan_out.spans),
        )

    async def forget(self, deletion: Deletion, timeout_s: float) -> tuple[Deleted, ...]:
        """See `Forgetful`. The first entry is the router's own; a member that fails has an entry with its error."""
        num_known = self.forget_known(deletion)
        answers = await forget_everywhere(self.fleet, deletion, timeout_s)
        return (Deleted(worker=_NAME, num_known=num_known), *answers)

    def forget_known(self, deletion: Deletion) -> int:
        """See `Concerted`."""
        self.notes.drop()
        num_known = self.fleet.embeddings.forget_all(deletion)
        return num_known + self.fleet.prefixes.forget_all(deletion, self._parts.clock.now_s())

    def take_notes(self, max_notes: int, max_bytes: int) -> bytes | None:
        """See `Concerted`."""
        return self.notes.take(max_notes, max_bytes)

    def learn(self, notes: bytes) -> int:
        """See `Concerted`."""
        return self.notes.learn(notes)

    def drain(self, name: str, *, is_over: bool = False, is_told: bool = False) -> bool:
        """See `Concerted`."""
        member = self.fleet.find(name)
        if member is None or (is_told and not member.is_shared):
            return False
        (self.fleet.resume if is_over else self.fleet.drain)(name)
        return True

    async def memory(self, timeout_s: float) -> tuple[WorkerMemory, ...]:
        """See `Weighable`."""
        answers = await asyncio.gather(*(_weighed(member, timeout_s) for member in self.fleet.members))
        return tuple(one for answer in answers for one in answer)

    async def load_adapter(self, load: AdapterLoad, timeout_s: float) -> AdapterInfo:
        """See `Adaptable`."""
        return await load_everywhere(self.fleet, load, timeout_s)

    async def unload_adapter(self, ref: AdapterRef, timeout_s: float) -> None:
        """See `Adaptable`."""
        await unload_everywhere(self.fleet, ref, timeout_s)

    async def aclose(self) -> None:
        """Stop; calls under way are ended and all members closed."""
        self._parts.quarantine.close()
        await self.health.aclose()
        await self._parts.encode.aclose()
        await self._parts.generate.withdrawals.aclose()
        for member in self.fleet.members:
            await self.fleet.remove(member.name).aclose()

    def _is_shared(self, name: str) -> bool:
        member = self.fleet.find(name)
        return member is not None and member.is_shared

    def _encoders(self, ladder: Ladder) -> list[WorkerView]:
        workers = self._parts.view().workers
        able = [one for one in workers if "encode" in one.roles and one.encodes_for_others]
        return [one for one in able if one.name not in ladder.failed_encoders]


async def _weighed(member: Member, timeout_s: float) -> tuple[WorkerMemory, ...]:
    """A member's memory under the name by which the fleet knows it, or why that is not known."""
    if not isinstance(member.worker, Weighable):
        return (WorkerMemory(worker=member.name, error=UnsupportedFeatureError.code),)
    try:
        async with asyncio.timeout(timeout_s):
            answer = await member.worker.memory(timeout_s)
    except TimeoutError:
        return (WorkerMemory(worker=member.name, error=DeadlineExceededError.code),)
    except ChiasmError as error:
        return (WorkerMemory(worker=member.name, error=error.code),)
    return tuple(msgspec.structs.replace(one, worker=member.name) for one in answer)


def _joint_info(infos: list[WorkerInfo]) -> WorkerInfo:
    """All roles that any plays, and the least of the limits of those that compute prompts and tokens."""
    speakers = [one for one in infos if "prefill" in one.roles or "decode" in one.roles] or infos
    return msgspec.structs.replace(
        speakers[0],
        name=_NAME,
        roles=tuple(role for role in _ROLES if any(role in one.roles for one in infos)),
        max_model_tokens=min(one.max_model_tokens for one in speakers),
        takes_images=any(one.takes_images for one in infos),
        started_at_unix_s=min(one.started_at_unix_s for one in infos),
    )
