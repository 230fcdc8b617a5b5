"""Which worker processes a topology consists of."""

import os
from collections.abc import Sequence
from typing import get_args

import msgspec

from chiasm.errors import InvalidSettingError
from chiasm.launch.processes.folder import SUFFIX, watched_folder
from chiasm.protocol.worker import Role
from chiasm.settings import RoutingSettings, Settings
from chiasm.settings.niceness import MOST_NICENESS

WHOLE: tuple[Role, ...] = ("encode", "prefill", "decode")


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process to be: its name in receipts and metrics, the stages that it computes, where it listens.

    `address` is 'unix:/path' or 'http://host:port'.
    """

    name: str
    roles: tuple[Role, ...]
    address: str = ""


def specs_of(routing: RoutingSettings) -> list[WorkerSpec]:
    """The processes of a topology, encoders first.

    Workers that prefill can encode too where `local_encode` allows it: the last resort when no encoder delivers.
    """
    encoders = [WorkerSpec(name=f"encode-{i}", roles=("encode",)) for i in range(routing.encoders)]
    may_encode: tuple[Role, ...] = ("encode",) if routing.local_encode == "fallback" else ()
    if routing.topology in ("agg", "auto"):
        return [WorkerSpec(name=f"worker-{i}", roles=WHOLE) for i in range(routing.workers)]
    if routing.topology == "e-pd":
        roles: tuple[Role, ...] = (*may_encode, "prefill", "decode")
        return encoders + [WorkerSpec(name=f"prefill-{i}", roles=roles) for i in range(routing.prefills)]
    assert routing.topology == "e-p-d", "a local worker has no process of its own"
    prefills = [WorkerSpec(name=f"prefill-{i}", roles=(*may_encode, "prefill")) for i in range(routing.prefills)]
    return encoders + prefills + [WorkerSpec(name=f"decode-{i}", roles=("decode",)) for i in range(routing.decodes)]


def spec_by_hand(routing: RoutingSettings, roles: Sequence[str], name: str | None, address: str | None) -> WorkerSpec:
    """The worker that a command line names; without an address it registers in the folder that servers watch.

    Raises:
        InvalidSettingError: No such role, neither an address nor a folder, or a folder that is not safe.
    """
    known: tuple[Role, ...] = get_args(Role)
    chosen = tuple(role for role in known if role in roles)
    if strange := sorted(set(roles) - set(known)):
        raise InvalidSettingError(f"No such role: {', '.join(strange)}", hint=f"Roles: {', '.join(known)}")
    called = name or f"{'-'.join(chosen)}-{os.getpid()}"
    if not address and not routing.directory:
        raise InvalidSettingError(
            "The worker has no address", hint="Give --address, or --set routing.directory=FOLDER that servers watch"
        )
    if not address:
        address = f"unix:{watched_folder(routing.directory) / called}{SUFFIX}"
    return WorkerSpec(name=called, roles=chosen, address=address)


def settings_of_one(settings: Settings, num_processes: int) -> Settings:
    """The settings that each of several worker processes on this machine gets: an equal part of the cores."""
    if settings.engine.threads:
        return settings
    threads = max(1, (os.cpu_count() or 1) // num_processes)
    return msgspec.structs.replace(settings, engine=msgspec.structs.replace(settings.engine, threads=threads))


def crowding_of(settings: Settings, parts: Sequence[int]) -> float:
    """How far workers on this machine's cores take them from each other; `parts` are those that each computes in.

    While all of n compute, each takes threads / cores times as long as alone; 1 + crowding * (n - 1) is to be that.
    """
    if len(parts) < 2:
        return 0.0
    num_threads = sum(parts) * settings_of_one(settings, len(parts)).engine.threads
    longer = num_threads / len(os.sched_getaffinity(0))
    return min(max((longer - 1.0) / (len(parts) - 1), 0.0), 1.0)


def behind_gateway(settings: Settings) -> Settings:
    """The settings inside a worker's process: media step back from where the whole process is already."""
    niceness = min(MOST_NICENESS, settings.routing.worker_niceness + settings.media.niceness)
    return msgspec.structs.replace(settings, media=msgspec.structs.replace(settings.media, niceness=niceness))


def niceness_of(spec: WorkerSpec, settings: Settings) -> int:
    """How far a worker's whole process steps back: one that only encodes, as far as media do."""
    if spec.roles == ("encode",):
        return behind_gateway(settings).media.niceness
    return settings.routing.worker_niceness
