"""Which workers there are."""

import logging
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial

import msgspec

from chiasm.errors import EngineDeadError, EngineStartError, ShuttingDownError
from chiasm.protocol.contract import check_worker
from chiasm.protocol.worker import Role, Worker, WorkerInfo
from chiasm.routing.absence import Absence
from chiasm.routing.clock import Clock
from chiasm.routing.costs.line import Coefficients
from chiasm.routing.costs.model import StageCosts
from chiasm.routing.coverage.embeddings import EmbeddingIndex
from chiasm.routing.coverage.losses import ReportsLosses
from chiasm.routing.coverage.prefixes import PrefixOwners
from chiasm.routing.lru import Lru
from chiasm.routing.member import Member
from chiasm.routing.view import FleetView, WorkerView
from chiasm.settings import RoutingSettings

logger = logging.getLogger(__name__)
_MAX_SERVERS = 4096


class Fleet:
    """The members by name. All serve the same model in the same revision: the first to join says which.

    Attributes:
        absence: Requests that wait for a worker.
        embeddings: Where embeddings are known to be.
        prefixes: Who computed which start of a prompt last.
    """

    def __init__(self, settings: RoutingSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self.absence = Absence(clock, settings.max_requests_waiting_for_worker)
        self._members: dict[str, Member] = {}
        self._servers: Lru[str] = Lru(_MAX_SERVERS)
        self._crowding: dict[str, float] = {}
        self._listed: tuple[Member, ...] | None = ()
        self.embeddings = EmbeddingIndex(clock)
        self.prefixes = PrefixOwners()

    @property
    def members(self) -> tuple[Member, ...]:
        """All of them, in the order in which they joined; another tuple after each change."""
        if self._listed is None:
            self._listed = tuple(self._members.values())
        return self._listed

    def add(self, name: str, worker: Worker) -> Member:
        """Take a worker in; it gets work once a probe has shown that it answers.

        Raises:
            EngineStartError: The name is taken, or the worker serves something else than the fleet.
        """
        if name in self._members:
            raise EngineStartError(f"There is a worker '{name}' already", hint="Give each worker a name of its own.")
        self.check(name, worker.info)
        if isinstance(worker, ReportsLosses):
            worker.report_losses(partial(self.prefixes.lost, name))
        member = self._members[name] = Member(name, worker, self._clock, self.absence.ended)
        self._listed = None
        if worker.info.server:
            self._servers.put(name, worker.info.server)
        logger.info("Worker '%s' joined: %s", name, ", ".join(worker.info.roles))
        return member

    def remove(self, name: str) -> Worker:
        """Forget a member, ending what it still has; the caller closes the worker. Raises `KeyError`."""
        member = self._members.pop(name)
        self._crowding.pop(name, None)
        self._listed = None
        member.mark_down("it was removed")
        self._forget_caches(member)
        return member.worker

    def share_cores(self, name: str, crowding: float) -> None:
        """Say how far a member and others of which it is said take cores from each other; settings know better."""
        if self._settings.crowding is None:
            self._crowding[name] = crowding

    def drain(self, name: str) -> None:
        """Give a member no more work; what it has may finish. Raises `KeyError`."""
        self._members[name].state = "draining"

    def resume(self, name: str) -> None:
        """Give a member that was drained work again, once it is proven. Raises `KeyError`."""
        self._members[name].resume()

    def check(self, name: str, info: WorkerInfo) -> None:
        """Compare a worker with the rest of the fleet. Raises `EngineStartError` for a stranger."""
        check_worker(name, info.version)
        other = next((one.info for one in self._members.values() if one.name != name), None)
        if other is None:
            return
        for field in ("model", "family", "model_revision", "processor_revision"):
            found, wanted = getattr(info, field), getattr(other, field)
            if found != wanted:
                raise EngineStartError(
                    f"Worker '{name}' has {field} '{found}', the fleet '{wanted}'",
                    hint="Serve the same model directory with the same packages everywhere.",
                )

    def get(self, name: str) -> Member:
        """The member of a name.

        Raises:
            EngineDeadError: It left since it was planned with.
        """
        member = self._members.get(name)
        if member is None:
            raise EngineDeadError(f"Worker '{name}' has left")
        return member

    def with_role(self, role: Role) -> list[Member]:
        """Members that are ready and play a role."""
        return [one for one in self._members.values() if one.state == "ready" and role in one.info.roles]

    def failed(self, member: Member, reason: str) -> None:
        """A member is dead or does not answer: no more work until a probe succeeds, and its caches are gone."""
        if member.state != "down":
            logger.warning("Worker '%s' is down: %s", member.name, reason)
            self._forget_caches(member)
        member.mark_down(reason)

    def blame(self, name: str, error: Exception) -> None:
        """Take note of an error that a request met at a member: one that says it is dead, or leaves, is believed."""
        member = self._members.get(name)
        if member is None:
            return
        if isinstance(error, EngineDeadError):
            self.failed(member, error.message)
        elif isinstance(error, ShuttingDownError):
            member.mark_leaving()

    def server_of(self, name: str) -> str:
        """What dies when this worker does, also of one that has left: workers of one server die together."""
        return self._servers.get(name) or name

    def find(self, name: str) -> Member | None:
        """The member of a name, if there is one."""
        return self._members.get(name)

    def view(
        self,
        costs: StageCosts,
        text_per_s: float,
        among: Iterable[Member] | None = None,
        hopes: Mapping[str, Coefficients] | None = None,
    ) -> FleetView:
        """The members that take work now; `among` are those to look at, all where it is None.

        `hopes` take the place of what is known of workers that encode nothing now: so one request tries them, not all
        that come while it does.
        """
        members = self.members if among is None else among
        ready, now_s = _awake([one for one in members if one.state == "ready"]), self._clock.now_s()
        crowding = self._settings.crowding or 0.0
        workers = tuple([_view(one, now_s, self._crowding.get(one.name, crowding)) for one in ready])
        return FleetView(
            workers=workers,
            topology=self._settings.topology,
            costs=_hopeful(costs, workers, hopes) if hopes else costs,
            has_local_fallback=self._settings.local_encode == "fallback",
            text_per_s=text_per_s,
        )

    def _forget_caches(self, member: Member) -> None:
        self.embeddings.forget_worker(member.name)
        self.prefixes.forget_worker(member.name)


def _awake(members: list[Member]) -> list[Member]:
    """Those that are not at rest, unless a role would be missing: then requests wait for the end of the rest."""
    awake = [one for one in members if not one.num_rests]
    return awake if len(awake) < len(members) and _roles(members) == _roles(awake) else members


def _roles(members: Iterable[Member]) -> set[str]:
    return {role for one in members for role in one.info.roles}


def _hopeful(costs: StageCosts, workers: Iterable[WorkerView], hopes: Mapping[str, Coefficients]) -> StageCosts:
    hoped = {one.name: hopes[one.name] for one in workers if one.name in hopes and not one.encode_wait_s}
    return msgspec.structs.replace(costs, encode={**costs.encode, **hoped}, hoped=frozenset(hoped))


def _view(member: Member, now_s: float, crowding: float) -> WorkerView:
    info, stats = member.worker.info, member.stats
    return WorkerView(
        name=member.name,
        roles=_role_set(info.roles),
        encode_wait_s=member.encoding.wait_at_s(now_s),
        prefill_wait_s=member.prefilling.wait_at_s(now_s),
        num_prefilling=len(member.prefilling),
        num_decoding=member.num_decoding,
        num_waiting=stats.num_waiting if stats is not None else 0,
        encodes_for_others=info.encodes_for_others,
        hands_kv_to_one=info.hands_kv_to_one,
        crowding=crowding,
    )


@lru_cache
def _role_set(roles: tuple[Role, ...]) -> frozenset[Role]:
    """One for all workers that play the same roles, since each request looks at many workers."""
    return frozenset(roles)
