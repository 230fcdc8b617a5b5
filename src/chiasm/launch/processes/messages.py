"""What a worker process and its owner say to each other: one order down, lines of JSON up."""

import msgspec

from chiasm.launch.processes.specs import WorkerSpec
from chiasm.settings import Settings


class Order(msgspec.Struct, frozen=True):
    """Who the process is to be."""

    spec: WorkerSpec
    settings: Settings


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """What is being done, and the share (0 to 1) of the start that is over."""

    what: str
    share: float


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """It listens."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """It cannot start: an error of the tree. The process ends."""

    code: str
    message: str
    hint: str | None = None


Report = Loading | Ready | Failed
