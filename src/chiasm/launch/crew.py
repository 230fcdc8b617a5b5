"""What makes up a fleet: which processes are started, how, and how a worker is spoken to."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from chiasm.launch.members import Connect
from chiasm.launch.model import model_directory, preparer_of
from chiasm.launch.processes.base import Process, Spawn
from chiasm.launch.processes.messages import Order
from chiasm.launch.processes.process import START_TIMEOUT_S, WorkerProcess
from chiasm.launch.processes.specs import WorkerSpec, crowding_of, settings_of_one, specs_of
from chiasm.media.prepare.base import ImagePreparer
from chiasm.media.spool import Spool
from chiasm.protocol.worker import Worker
from chiasm.routing.remote import RemoteWorker
from chiasm.settings import Settings


class Crew(Protocol):
    """The workers of one engine.

    Attributes:
        specs: Processes to be started.
        listed: Workers that run already, by address, with a name where they do not say their own.
        shares_host: Whether all workers can read this host's media spool; otherwise media travel in the calls.
        preparer: How the model's pictures are sized; None where that is not known, or it has no eyes.
        takes_images: Whether it has.
        start_timeout_s: Time that a process has to start.
        crowding: How far the processes to be started take cores from each other (`RoutingSettings.crowding`).
    """

    specs: Sequence[WorkerSpec]
    listed: Sequence[tuple[str | None, str]]
    shares_host: bool
    preparer: ImagePreparer | None
    takes_images: bool
    start_timeout_s: float
    crowding: float

    def spawner(self, folder: Path, spool: Spool | None) -> Spawn:
        """What starts a process; sockets and logs go to `folder`, media are read from `spool`."""
        ...

    @property
    def connect(self) -> Connect:
        """Asks for the workers behind an address, each with its name. Raises `ChiasmError`."""
        ...

    def close(self) -> None:
        """Let go of what the workers shared; all have ended."""
        ...


def embedded_spawner(settings: Settings, folder: Path) -> Spawn:
    """Start processes of the embedded engine, each with `settings`, listening on sockets in `folder`."""

    def spawn(spec: WorkerSpec) -> Process:
        path = folder / f"{spec.name}.sock"
        path.unlink(missing_ok=True)
        return WorkerProcess(Order(msgspec.structs.replace(spec, address=f"unix:{path}"), settings))

    return spawn


class EmbeddedCrew:
    """Processes of Chiasm's own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.specs: Sequence[WorkerSpec] = specs_of(settings.routing)
        self.listed: Sequence[tuple[str | None, str]] = [(None, address) for address in settings.routing.members]
        self.shares_host = not any(address.startswith("http://") for address in settings.routing.members)
        self.preparer = preparer_of(model_directory(settings.engine.model))
        self.takes_images = self.preparer is not None
        self.start_timeout_s = START_TIMEOUT_S
        self.crowding = crowding_of(settings, [1] * len(self.specs))
        self.connect = remote_connect(settings.routing.worker_token)

    def spawner(self, folder: Path, spool: Spool | None) -> Spawn:
        """See `Crew`. Workers find the spool by their settings."""
        return embedded_spawner(settings_of_one(self._settings, max(1, len(self.specs))), folder)

    def close(self) -> None:
        """See `Crew`: processes clean up after themselves."""


def remote_connect(token: str) -> Connect:
    """How workers of the embedded engine are spoken to."""

    async def connect(name: str | None, address: str) -> Sequence[tuple[str, Worker]]:
        worker = await RemoteWorker.connect(address, token=token or None)
        return [(name or worker.info.name, worker)]

    return connect
