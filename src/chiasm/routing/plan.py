"""The plan of a request: who encodes which pictures, who prefills, who decodes, and why."""

from collections.abc import Collection, Mapping
from typing import Literal

import msgspec

from chiasm.errors import EngineDeadError, HandleExpiredError
from chiasm.routing.view import FleetView, ItemView, Job, WorkerView

Fate = Literal["prefix", "embedding", "encode", "local"]
"""Of a picture: its keys and values are cached, its embedding is, an encoder makes it, the prefilling worker does."""


class EncodeGroup(msgspec.Struct, frozen=True):
    """Pictures that one worker encodes in one call."""

    worker: str
    identities: tuple[str, ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One way for a request. `decode` is None when the prefilling worker goes on to decode."""

    path: str
    policy: str
    reason: str
    prefill: str
    decode: str | None = None
    groups: tuple[EncodeGroup, ...] = ()
    fates: Mapping[str, Fate] = {}


def prefill_candidates(job: Job, fleet: FleetView) -> list[WorkerView]:
    """Workers that may prefill the request.

    Raises:
        HandleExpiredError: It must be encoded where it is prefilled, and no worker left can do both.
        EngineDeadError: None is up that has not failed it.
    """
    workers = [one for one in fleet.workers if "prefill" in one.roles and one.name not in job.failed]
    if not workers:
        raise no_worker("prefill", job)
    if not job.local_only:
        return workers
    able = [one for one in workers if "encode" in one.roles and fleet.has_local_fallback]
    if not able:
        raise HandleExpiredError(
            f"No encoder delivered {len(job.local_only)} of the request's pictures", hint="Send the request again."
        )
    return able


def decode_candidates(job: Job, fleet: FleetView, prefill: WorkerView) -> list[WorkerView]:
    """Workers that may decode after `prefill`; empty when it decodes itself.

    Raises:
        EngineDeadError: None is up that has not failed the request.
    """
    if prefill.decodes(job.num_choices):
        return []
    workers = [one for one in fleet.workers if "decode" in one.roles and one.name not in job.failed]
    if not workers:
        raise no_worker("decode", job)
    return workers


def encode_candidates(job: Job, fleet: FleetView) -> list[WorkerView]:
    """Workers that may be asked to encode; empty where the topology has each worker encode for itself."""
    if fleet.topology in ("local", "agg"):
        return []
    encoders = [one for one in fleet.workers if "encode" in one.roles and one.encodes_for_others]
    able = [one for one in encoders if one.name not in job.failed_encoders]
    if fleet.topology == "auto":
        return able
    return [one for one in able if one.is_encoder_only]


def encodes_itself(fleet: FleetView, prefill: WorkerView) -> bool:
    """Whether encoding where the prompt is computed is a way of its own, not only the last resort."""
    return fleet.topology in ("local", "agg", "auto") and "encode" in prefill.roles


def fates_of(job: Job, fleet: FleetView, prefill: WorkerView) -> dict[str, Fate]:
    """What is to become of each picture when `prefill` computes the prompt.

    Where encoders are apart, only an embedding on offer covers a picture: a prefilling worker whose cache had lost it
    would otherwise do an encoder's work.
    """
    name, known = prefill.name, job.known_items(prefill.name)
    is_whole = encodes_itself(fleet, prefill)
    return {one.identity: _fate(one, job, name, known, is_whole=is_whole) for one in job.items}


def _fate(item: ItemView, job: Job, name: str, known: Collection[str], *, is_whole: bool) -> Fate:
    if item.identity in job.local_only:
        return "local"
    is_coverable = item.has_handle or (is_whole and item.has_pixels)
    if is_coverable and item.identity in known:
        return "prefix"
    if item.has_handle or (is_coverable and name in item.holders):
        return "embedding"
    return "encode"


def path_of(
    job: Job, prefill: WorkerView, fates: Mapping[str, Fate], groups: tuple[EncodeGroup, ...], fleet: FleetView
) -> str:
    """The route's name: what is split off, in the order in which it happens."""
    is_whole, decodes = encodes_itself(fleet, prefill), prefill.decodes(job.num_choices)
    if groups:
        return "e-pd" if decodes else "e-p-d"
    if "local" in fates.values() and not (is_whole and decodes):
        return "local-encode"
    if fates and "local" not in fates.values():
        return "covered"
    if not decodes:
        return "p-d"
    return "agg" if is_whole else "pd"


def no_worker(stage: str, job: Job) -> EngineDeadError:
    """What to raise when nobody is there for a stage."""
    failed = f" that has not failed this request ({len(job.failed)} did)" if job.failed else ""
    return EngineDeadError(f"No worker for {stage} is up{failed}", hint="Look at the workers' health.")
