"""What is placed: resources for each process, and orders that say everything but secrets and the node's address."""

import msgspec

from chiasm.errors import InvalidSettingError
from chiasm.launch.processes.messages import Order
from chiasm.launch.processes.process import START_TIMEOUT_S
from chiasm.launch.processes.specs import WorkerSpec, specs_of
from chiasm.settings import ClusterSettings, Settings
from chiasm.settings.secret import secrets_of, with_secrets_from_here, without_secrets

LOCAL = "ray"
_SCHEME = "ray://"
_MAX_PORT = 65535


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
    start_timeout_s: float = START_TIMEOUT_S


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
    if settings.engine.kind == "vllm":
        _check_vllm(settings)
    elif settings.engine.kind != "embedded":
        raise InvalidSettingError(f"The engine '{settings.engine.kind}' is not placed on a cluster")
    if settings.routing.topology == "local":
        raise InvalidSettingError("A cluster needs workers", hint="Add --topology e-pd, e-p-d, agg or auto")
    return specs_of(settings.routing)


def _check_vllm(settings: Settings) -> None:
    """Raise `InvalidSettingError` where servers of vLLM cannot be placed so."""
    if settings.vllm.workers_file or settings.routing.topology != "agg":
        raise InvalidSettingError(
            "On a cluster vLLM runs as whole servers that are placed there: topology 'agg', and no workers' file",
            hint="For other topologies start the servers on their nodes with `chiasm worker --engine vllm`, and name "
            "them in vllm.workers_file of a server without --cluster",
        )
    if settings.vllm.devices or settings.adapters.roots or settings.adapters.preload:
        raise InvalidSettingError(
            "Servers of vLLM on a cluster have neither vllm.devices nor adapters",
            hint="Ray gives devices by cluster.prefill_gpus; adapters need servers without --cluster",
        )


def gateway_specs(settings: Settings) -> list[WorkerSpec]:
    """The gateways to place, which have no roles. Raises `InvalidSettingError` where there cannot be so many."""
    number = settings.cluster.gateways
    if number > 1 and not settings.gateway.store:
        raise InvalidSettingError(
            f"{number} gateways need a store: without one each allows a tenant's whole limits, and a deletion or a "
            "drain at one does not reach the others",
            hint="Set gateway.store, as in redis://host:6379/0; see docs/guides/high_availability.md",
        )
    if settings.gateway.port + number - 1 > _MAX_PORT:
        raise InvalidSettingError(f"There are no {number} ports from gateway.port on", hint="Lower gateway.port")
    return [WorkerSpec(name=f"gateway-{place}", roles=()) for place in range(number)]


def as_gateway(settings: Settings, place: int) -> Settings:
    """Settings of the gateway of this place among `gateway_specs`: two of them may come to one machine."""
    port = settings.gateway.port and settings.gateway.port + place
    number = max(settings.cluster.gateways, settings.gateway.store_gateways)
    gateway = msgspec.structs.replace(settings.gateway, port=port, store_gateways=number)
    return msgspec.structs.replace(settings, gateway=gateway)


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
    is_vllm = settings.engine.kind == "vllm" and spec.roles
    return Assignment(
        order=order,
        secrets=names,
        cpus=room_of(spec, settings.cluster).cpus,
        start_timeout_s=settings.vllm.start_timeout_s if is_vllm else START_TIMEOUT_S,
    )


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
    port = 0
    if settings.engine.kind == "vllm" and order.spec.roles:
        from chiasm.launch.vllm.ports import lasting_port

        port = lasting_port(host)  # a server of vLLM does not say which one it got
    return Order(msgspec.structs.replace(order.spec, address=f"http://{_bracketed(host)}:{port}"), settings)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
