"""What is to run: a gateway and workers by stage, their commands and settings. Free of any orchestrator's words."""

import json
import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from chiasm.errors import InvalidSettingError

Topology = Literal["local", "e-pd", "e-p-d"]

GATEWAY_PORT = 8000
WORKER_PORT = 9001
USER_ID = 10001
DRAIN_S = 30
LEAVE_S = 5
"""Between being taken out of the load balancer and the drain's start."""

_NAME = r"[a-z]([-a-z0-9]{0,30}[a-z0-9])?"
_STAGES: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "local": (),
    "e-pd": (("encode", ("encode",)), ("prefill", ("prefill", "decode"))),
    "e-p-d": (("encode", ("encode",)), ("prefill", ("prefill",)), ("decode", ("decode",))),
}


class WorkerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Workers that do the same. `most` is how many there may become."""

    name: str
    roles: tuple[str, ...]
    count: int
    most: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody asked for.

    Attributes:
        model: Directory inside the containers; empty for the packaged model.
        keys: Whether callers need keys; they stand in a secret that the operator makes.
        downloads: Whether the gateway may fetch media from public addresses.
    """

    name: str = "chiasm"
    image: str = "chiasm:latest"
    model: str = ""
    topology: Topology = "e-pd"
    gateways: Annotated[int, Meta(ge=1, le=64)] = 2
    encoders: Annotated[int, Meta(ge=1, le=64)] = 1
    max_encoders: Annotated[int, Meta(ge=1, le=64)] = 4
    prefills: Annotated[int, Meta(ge=1, le=64)] = 1
    decodes: Annotated[int, Meta(ge=1, le=64)] = 1
    gpus: Annotated[int, Meta(ge=0, le=16)] = 0
    cpus: Annotated[int, Meta(ge=1, le=512)] = 4
    memory_gib: Annotated[int, Meta(ge=1, le=4096)] = 8
    keys: bool = True
    downloads: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(_NAME, self.name):
            raise InvalidSettingError("This is no name for a deployment", hint="Lower-case letters, digits and '-'")
        if self.max_encoders < self.encoders:
            raise InvalidSettingError(
                f"At most {self.max_encoders} encoders, {self.encoders} to begin with", hint="Raise --max-encoders"
            )

    @property
    def groups(self) -> tuple[WorkerGroup, ...]:
        """Workers of their own; none where the server does everything in its process."""
        counts = {"encode": self.encoders, "prefill": self.prefills, "decode": self.decodes}
        return tuple(
            WorkerGroup(
                name=name, roles=roles, count=counts[name], most=self.max_encoders if name == "encode" else counts[name]
            )
            for name, roles in _STAGES[self.topology]
        )

    def gateway_command(self, members: tuple[str, ...]) -> list[str]:
        """The server's arguments. `members` are the workers' addresses, also of those that may come later."""
        settings = [f"gateway.drain_timeout_s={DRAIN_S}"]
        if self.keys:
            settings += ["gateway.keys_file=/etc/chiasm/keys/keys.toml"]
        if members:
            settings += [f"routing.members={json.dumps(members)}", "transfer.connector=tcp"]
        counts = ["--topology", self.topology]
        if members:
            counts += ["--encoders", "0", "--prefills", "0"]
            counts += ["--decodes", "0"] if self.topology == "e-p-d" else []
        address = ["--host", "0.0.0.0", "--port", str(GATEWAY_PORT)]  # noqa: S104 - inside the container
        return ["chiasm", "serve", *self._model(), *address, *counts, *_set(settings)]

    def worker_command(self, group: WorkerGroup, name: str, host: str) -> list[str]:
        """A worker's arguments. `host` is the address at which the others reach it."""
        roles = [part for role in group.roles for part in ("--role", role)]
        settings = ["transfer.connector=tcp", f"transfer.host={host}"]
        address = f"http://{host}:{WORKER_PORT}"
        return ["chiasm", "worker", *self._model(), *roles, "--name", name, "--address", address, *_set(settings)]

    def _model(self) -> list[str]:
        return [self.model] if self.model else []


def _set(settings: list[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]
