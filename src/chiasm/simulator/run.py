"""One simulation: a fleet, what comes in, and what that comes to."""

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from zlib import crc32

import msgspec
import simpy

from chiasm.errors import InvalidSettingError
from chiasm.settings import RoutingSettings
from chiasm.simulator.calibration import Calibration, Interference
from chiasm.simulator.clock import Process, VirtualTime
from chiasm.simulator.cluster import Cluster, WorkerSpec
from chiasm.simulator.device import Company, Device
from chiasm.simulator.failures import Failures, begin_failures
from chiasm.simulator.front import Front, Ledger, OnEnded, OnSpan
from chiasm.simulator.host import Cores, OwnCores, SharedCores
from chiasm.simulator.journey import Journey
from chiasm.simulator.known import known_costs
from chiasm.simulator.record import Record
from chiasm.simulator.scaling import Scaler, Scaling
from chiasm.simulator.traffic import Request, Traffic, requests_of
from chiasm.simulator.worker import SimulatedWorker

if TYPE_CHECKING:
    from chiasm.protocol.worker import Role

_COLLECT_AFTER = 200_000

Policy = Literal["round_robin", "least_work", "content", "adaptive"]


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What changes in a fleet meanwhile: workers that die and come back, encoders apart as many as are needed."""

    failures: Failures | None = None
    scaling: Scaling | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a simulation came to.

    Attributes:
        elapsed_s: Simulated seconds until the last request ended; all that came did.
        mean_open: Requests under way, averaged over time.
        num_deaths: Workers that died.
        mean_encoders: Encoders apart, averaged over time; as they were where they are not scaled.
        most_encoders: The most of them there were.
        utilisation: By worker and kind of work, the share of the time; media work of one thread.
    """

    cluster: Cluster
    record: Record
    elapsed_s: float
    mean_open: float
    utilisation: dict[str, dict[str, float]]
    num_deaths: int = 0
    mean_encoders: float = 0.0
    most_encoders: int = 0


def simulate(  # noqa: PLR0913 - all of them describe one simulation
    cluster: Cluster,
    traffic: Traffic,
    calibration: Calibration,
    *,
    policy: Policy = "adaptive",
    requests: Iterable[Request] | None = None,
    changes: Changes | None = None,
    num_gateways: int = 1,
    keeps_together: bool = False,
    max_candidates: int | None = None,
    on_span: OnSpan | None = None,
    on_ended: OnEnded = lambda _: None,
) -> Outcome:
    """Run until the last request has its last token.

    Args:
        cluster: The fleet.
        traffic: What comes in; its classes also say what the router expects.
        calibration: What stages cost.
        policy: As in the setting `routing.policy`.
        requests: Instead of those that `traffic` describes: a trace, in order of arrival.
        changes: In the fleet; None: it stays as it is.
        num_gateways: Requests come to so many in turn, each of which knows only what it has sent itself.
        keeps_together: Those with a start in common come to the same gateway instead.
        max_candidates: As in the setting `routing.max_candidates`; None: its default.
        on_span: Told of every stage of every request.
        on_ended: Told now and then how many requests have ended.

    Raises:
        InvalidSettingError: The fleet lacks a stage or what is to change, costs what is asked; or too many are open.
    """
    _check_stages(cluster, traffic)
    env, changes = VirtualTime(), changes or Changes()
    cores = _cores(env, cluster, calibration)
    workers = _workers(env, cluster, calibration, cores)
    costs = known_costs(calibration, traffic.classes, cluster.workers)
    settings, ledger = _settings(cluster, policy, max_candidates), Ledger(env, cluster.name, on_ended)
    if num_gateways > 1 and changes != Changes():
        raise InvalidSettingError("Deaths and scaling are simulated with one gateway only")
    parts = (env, settings, calibration, workers, costs, ledger, cores, on_span)
    fronts = [Front(*parts, number) for number in range(num_gateways)]
    if changes.failures is not None:
        begin_failures(env, fronts[0], changes.failures)
    scaler = None if changes.scaling is None else _scaler(env, fronts[0], changes.scaling, cluster, calibration)
    coming = requests_of(traffic) if requests is None else requests
    env.process(_arrive(env, fronts, coming, keeps_together=keeps_together))
    with _rare_collections():
        env.pass_until(ledger.over)
    return _outcome(cluster, workers, ledger, scaler)


def _settings(cluster: Cluster, policy: Policy, max_candidates: int | None) -> RoutingSettings:
    settings = RoutingSettings(topology=cluster.topology, policy=policy)
    if max_candidates is None:
        return settings
    return msgspec.structs.replace(settings, max_candidates=max_candidates)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """A simulation makes few cycles of objects: looking for them as often as usual takes about a sixth of the time."""
    usual = gc.get_threshold()
    gc.set_threshold(max(usual[0], _COLLECT_AFTER), *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _outcome(cluster: Cluster, workers: Sequence[SimulatedWorker], ledger: Ledger, scaler: Scaler | None) -> Outcome:
    elapsed_s = ledger.changed_s
    num_encoders = sum(set(one.roles) == {"encode"} for one in cluster.workers)
    return Outcome(
        cluster=cluster,
        record=ledger.record,
        elapsed_s=elapsed_s,
        mean_open=ledger.open_s / elapsed_s if elapsed_s else 0.0,
        utilisation={one.info.name: one.busy.shares(elapsed_s) for one in workers},
        num_deaths=ledger.num_deaths,
        mean_encoders=num_encoders if scaler is None else scaler.mean_encoders(elapsed_s),
        most_encoders=num_encoders if scaler is None else scaler.num_most,
    )


def _scaler(
    env: simpy.Environment, front: Front, scaling: Scaling, cluster: Cluster, calibration: Calibration
) -> Scaler:
    if not any(set(one.roles) == {"encode"} for one in cluster.workers):
        raise InvalidSettingError(f"The fleet '{cluster.name}' has no encoders apart to scale")

    def make(number: int) -> SimulatedWorker:
        spec = WorkerSpec(name=f"scaled-{number}", roles=("encode",), device=f"scaled-{number}")
        device = Device(calibration.interference or Interference())
        return SimulatedWorker(env, spec, calibration, device, front.cores)

    scaler = Scaler(env, front, scaling, make)
    scaler.begin()
    return scaler


def _arrive(env: VirtualTime, fronts: Sequence[Front], requests: Iterable[Request], *, keeps_together: bool) -> Process:
    for number, request in enumerate(requests):
        if request.at_s > env.now:
            yield env.timeout(request.at_s - env.now)
        place = crc32(request.prefix.encode()) if keeps_together and request.prefix else number
        env.begin(Journey(fronts[place % len(fronts)], request).run())
    fronts[0].ledger.close()


def _cores(env: VirtualTime, cluster: Cluster, calibration: Calibration) -> Cores:
    if not cluster.is_one_host:
        return OwnCores(env)
    if calibration.sharing is None:
        raise InvalidSettingError(
            "The calibration does not say what work takes of a shared host's cores",
            hint="Profile a server on such a host again: `chiasm profile`, on the same machine as the server.",
        )
    return SharedCores(env, calibration.sharing)


def _workers(env: simpy.Environment, cluster: Cluster, calibration: Calibration, cores: Cores) -> list[SimulatedWorker]:
    found, sharing = calibration.interference or Interference(), calibration.sharing
    company = Company(sharing.step_by_encode if sharing is not None and cluster.is_one_host else 0.0)
    devices = {spec.device: Device(found, company=company) for spec in cluster.workers}
    with_engine = {spec.device for spec in cluster.workers if set(spec.roles) != {"encode"}}
    for spec in cluster.workers:
        if set(spec.roles) == {"encode"} and spec.device in with_engine:
            devices[spec.device].num_residents += 1
    return [SimulatedWorker(env, spec, calibration, devices[spec.device], cores) for spec in cluster.workers]


def _check_stages(cluster: Cluster, traffic: Traffic) -> None:
    needed: list[Role] = ["prefill", "decode"]
    if any(one.num_images for one in traffic.classes):
        needed.append("encode")
    for role in needed:
        if not any(role in worker.roles for worker in cluster.workers):
            raise InvalidSettingError(f"The fleet '{cluster.name}' has nobody for {role}")
