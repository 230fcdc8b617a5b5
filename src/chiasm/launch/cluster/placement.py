"""What is placed: resources for each process, and orders that say everything but secrets and the node's address."""

import msgspec

from chiasm.errors import InvalidSettingError
from chiasm.launch.processes.messages import Order
from chiasm.launch.processes.specs import WorkerSpec, specs_of
from chiasm.settings import ClusterSettings, Settings
from chiasm.settings.secret import secrets_of, with_secrets_from_here, without_secrets

LOCAL = "ray"
_SCHEME = "ray://"
_MAX_PORT = 65535
GATEWAY = WorkerSpec(name="gateway", roles=())


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What Ray sets aside for one process."""

    cpus: float
    gpus: float = 0.0

    def __str__(self) -> str:
        return f"{self.cpus:g} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """An order as it travels to a node: without secrets, whose names only say which must be set there."""

    order: Order
    secrets: tuple[str, ...]
    cpus: float


def ray_address(address: str) -> str | None:
    """Host and port of a setting `cluster.address`; None for the cluster of this machine.

    Raises:
        InvalidSettingError: It is neither.
    """
    if address == LOCAL:
        return None
    host, _, port = address.removeprefix(_SCHEME).rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port[:6]) <= _MAX_PORT
    if not address.startswith(_SCHEME) or not host or not is_port:
        raise InvalidSettingError(
            f"cluster.address '{address}' is no cluster", hint="Use 'ray', or 'ray://host:port' of the cluster's head"
        )
    return f"{host}:{port}"


def cluster_specs(settings: Settings) -> list[WorkerSpec]:
    """The workers to place.

    Raises:
        InvalidSettingError: These settings cannot be served on a cluster.
    """
    if settings.engine.kind != "embedded":
        raise InvalidSettingError(
            "Servers of vLLM are not placed on a cluster",
            hint="Start them there, and name them in vllm.workers_file of a server without --cluster",
        )
    if settings.routing.topology == "local":
        raise InvalidSettingError("A cluster needs workers", hint="Add --topology e-pd, e-p-d, agg or auto")
    return specs_of(settings.routing)


def room_of(spec: WorkerSpec, cluster: ClusterSettings) -> Room:
    """What a process needs, by the heaviest of its roles."""
    if not spec.roles:
        return Room(cpus=cluster.gateway_cpus)
    if "prefill" in spec.roles:
        return Room(cpus=cluster.prefill_cpus, gpus=cluster.prefill_gpus)
    if "decode" in spec.roles:
        return Room(cpus=cluster.decode_cpus, gpus=cluster.decode_gpus)
    return Room(cpus=cluster.encode_cpus, gpus=cluster.encode_gpus)


def assignment_of(spec: WorkerSpec, settings: Settings) -> Assignment:
    """What a node is told."""
    names = tuple(name for name in secrets_of(settings) if spec.roles == () or name == "routing.worker_token")
    order = Order(spec, without_secrets(settings))
    return Assignment(order=order, secrets=names, cpus=room_of(spec, settings.cluster).cpus)


def on_node(assignment: Assignment, host: str) -> Order:
    """The order for a process of this node, which others reach at `host`.

    Raises:
        InvalidSettingError: A secret is not set here.
    """
    order = assignment.order
    settings = with_secrets_from_here(order.settings, assignment.secrets)
    threads = settings.engine.threads or max(1, int(assignment.cpus))
    settings = msgspec.structs.replace(
        settings,
        engine=msgspec.structs.replace(settings.engine, threads=threads),
        transfer=msgspec.structs.replace(settings.transfer, connector="tcp", host=host),
    )
    return Order(msgspec.structs.replace(order.spec, address=f"http://{_bracketed(host)}:0"), settings)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
