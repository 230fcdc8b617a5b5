"""Where servers publish what they store in their prefix caches and evict, and what tells them to."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from chiasm.errors import MissingExtraError
from chiasm.launch.processes.specs import WorkerSpec
from chiasm.launch.vllm.workers_file import ListedWorker, read_workers
from chiasm.routing.vllm.cache_events import EventsAddress, has_zmq
from chiasm.settings import VllmSettings

_BUFFERED_STEPS = 1000
"""What a server keeps for a listener that is slow, or asks again; a step may take some hundred kilobytes."""
_FIRST = ".tcp:1"
"""vLLM 0.32 adds an engine's number to what comes last, where it finds 'tcp': here to a number in a file's name."""


def events_of_listed(worker: ListedWorker, rank: int) -> EventsAddress | None:
    """Where a data-parallel engine of a server that runs already publishes, if the workers' file says so."""
    if not worker.kv_events:
        return None
    return EventsAddress(worker.kv_events, worker.kv_replay).of_rank(rank)


def events_of_started(spec: WorkerSpec, settings: VllmSettings, folder: Path) -> EventsAddress | None:
    """Where a server that is started here is to publish: sockets beside its own, under this user's folder.

    That is the first engine's address; `of_rank` gives those of others.
    """
    if "prefill" not in spec.roles or spec.address or not wants_events(settings.kv_events):
        return None
    return EventsAddress(f"ipc://{folder / spec.name}.kv{_FIRST}", f"ipc://{folder / spec.name}.kvr{_FIRST}")


def silent_servers(settings: VllmSettings, specs: Sequence[WorkerSpec]) -> list[str]:
    """Servers that compute prompts and will not say what they evict: of the workers' file, or of `specs`."""
    if settings.workers_file:
        listed = read_workers(settings.workers_file)
        return [one.name for one in listed if "prefill" in one.roles and not one.kv_events]
    anywhere = Path()
    return [one.name for one in specs if "prefill" in one.roles and not events_of_started(one, settings, anywhere)]


def wants_events(setting: Literal["auto", "yes", "no"]) -> bool:
    """Whether servers are to publish. Raises `MissingExtraError` where they must and nobody here could listen."""
    if setting == "yes":
        require_listener("vllm.kv_events", "leave it on 'auto'")
    return setting != "no" and has_zmq()


def require_listener(wish: str, way_out: str) -> None:
    """Raise `MissingExtraError`, naming what asked for events, when nobody here could listen."""
    if not has_zmq():
        raise MissingExtraError(f"{wish} needs pyzmq", hint=f"pip install 'chiasm[vllm]', or {way_out}")


def how_to_hear(settings: VllmSettings) -> str:
    """What makes the silent ones of `silent_servers` say it."""
    if settings.workers_file:
        return "Start them as docs/vllm.md says under 'What a server still has', and write kv_events into their entries"
    if settings.kv_events == "no":
        return "Leave vllm.kv_events on 'auto'"
    return "pip install 'chiasm[vllm]'"


def events_flags(address: EventsAddress | None) -> list[str]:
    """What makes a server publish."""
    if address is None:
        return []
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": address.publishes,
        "replay_endpoint": address.replays,
        "buffer_steps": _BUFFERED_STEPS,
        "hwm": _BUFFERED_STEPS,
    }
    return ["--kv-events-config", json.dumps(config)]
