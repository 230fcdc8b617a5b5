"""Which workers a simulated fleet has."""

from typing import Annotated

import msgspec
from msgspec import Meta

from chiasm.protocol.worker import Role
from chiasm.routing.view import Topology

_WHOLE: tuple[Role, ...] = ("encode", "prefill", "decode")


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One worker. Workers that name the same device slow each other down.

    Attributes:
        kv_tokens: Tokens of context it holds; 0 takes the calibration's.
        encoder_factor: Time of its vision tower relative to that of other encoders, for devices of another kind.
    """

    name: str
    roles: tuple[Role, ...]
    device: str
    kv_tokens: int = 0
    encoder_factor: float = 1.0


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet.

    Attributes:
        cost: What it costs a second, in units of one whole device, to compare fleets of other sizes.
        is_one_host: Whether all workers, the gateway and the client share one host's cores; else each has cores enough.
    """

    name: str
    topology: Topology
    workers: Annotated[tuple[WorkerSpec, ...], Meta(min_length=1)]
    cost: float
    is_one_host: bool = False


def on_one_host(cluster: Cluster) -> Cluster:
    """The same workers, all on one host, with their gateway and client."""
    return msgspec.structs.replace(cluster, is_one_host=True)


def aggregated(num_devices: int) -> Cluster:
    """Whole workers, each for itself."""
    return _whole("agg", num_devices)


def adaptive(num_devices: int) -> Cluster:
    """Whole workers that encode for each other."""
    return _whole("auto", num_devices)


def colocated(num_devices: int, *, encoders: int = 1, kv_share: float = 1.0, kv_tokens: int = 0) -> Cluster:
    """On each device, encoders beside a worker for prefill and decode.

    Args:
        num_devices: Devices.
        encoders: Encoder processes on each.
        kv_share: What the encoders leave of a whole device's room for contexts.
        kv_tokens: That room; 0 is no limit.
    """
    room = max(1, int(kv_tokens * kv_share)) if kv_tokens else 0
    workers = [
        one
        for device in range(num_devices)
        for one in (
            *(_worker(f"encode-{device}-{n}", ("encode",), f"device-{device}") for n in range(encoders)),
            _worker(f"serve-{device}", ("prefill", "decode"), f"device-{device}", room),
        )
    ]
    name = f"colocated {encoders}E+1PD x{num_devices}"
    return Cluster(name=name, topology="e-pd", workers=tuple(workers), cost=float(num_devices))


def disaggregated(
    num_encoders: int, num_workers: int, *, encoder_cost: float = 1.0, encoder_factor: float = 1.0
) -> Cluster:
    """Encoders on devices of their own, which cost `encoder_cost` of one of the others, and take so much longer."""
    encoders = [_encoder(n, encoder_factor) for n in range(num_encoders)]
    servers = [_worker(f"serve-{n}", ("prefill", "decode"), f"device-{n}") for n in range(num_workers)]
    return Cluster(
        name=f"{num_encoders}E+{num_workers}PD",
        topology="e-pd",
        workers=(*encoders, *servers),
        cost=num_encoders * encoder_cost + num_workers,
    )


def split(
    num_encoders: int, num_prefills: int, num_decodes: int, *, encoder_cost: float = 1.0, encoder_factor: float = 1.0
) -> Cluster:
    """All three stages on devices of their own."""
    return Cluster(
        name=f"{num_encoders}E+{num_prefills}P+{num_decodes}D",
        topology="e-p-d",
        workers=(
            *(_encoder(n, encoder_factor) for n in range(num_encoders)),
            *(_worker(f"prefill-{n}", ("prefill",), f"prefill-{n}") for n in range(num_prefills)),
            *(_worker(f"decode-{n}", ("decode",), f"decode-{n}") for n in range(num_decodes)),
        ),
        cost=num_encoders * encoder_cost + num_prefills + num_decodes,
    )


def _whole(topology: Topology, num_devices: int) -> Cluster:
    workers = tuple(_worker(f"worker-{n}", _WHOLE, f"device-{n}") for n in range(num_devices))
    return Cluster(name=f"{topology} x{num_devices}", topology=topology, workers=workers, cost=float(num_devices))


def _encoder(number: int, factor: float) -> WorkerSpec:
    return WorkerSpec(name=f"encode-{number}", roles=("encode",), device=f"encoder-{number}", encoder_factor=factor)


def _worker(name: str, roles: tuple[Role, ...], device: str, kv_tokens: int = 0) -> WorkerSpec:
    return WorkerSpec(name=name, roles=roles, device=device, kv_tokens=kv_tokens)
