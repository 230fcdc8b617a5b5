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

    address: str = ""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """It cannot start: an error of the tree. The process ends."""

    code: str
    message: str
    hint: str | None = None


class MemberLoad(msgspec.Struct, frozen=True):
    """A worker as a gateway sees it: the state of its member, and calls under way there."""

    state: str
    num_open: int


class Load(msgspec.Struct, frozen=True, tag="load"):
    """What a gateway has under way: levels of its metrics, and its members. Comes again and again."""

    levels: dict[str, float]
    members: dict[str, MemberLoad]


class Listed(msgspec.Struct, frozen=True):
    """A worker that a gateway is to have. One that leaves gets no more work."""

    address: str
    is_leaving: bool = False


class Roster(msgspec.Struct, frozen=True):
    """Goes down to a gateway: the workers by name, and how many encoders are wanted. A higher number is newer."""

    number: int
    workers: dict[str, Listed]
    encoders_wanted: int | None = None


Report = Loading | Ready | Failed | Load
