"""The grid file: which servers, which cells, how long."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from chiasm.bench.workload.arrivals import Pattern
from chiasm.errors import InvalidSettingError
from chiasm.settings.finite import decode_toml

Cache = Literal["cold", "warm"]
Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]
_LEVELS = {"min_length": 1, "max_length": 50}


class Topology(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server under load: started with the words after `chiasm serve`, or running already at a URL.

    `processes` names the worker processes in the order of their start, for the report's account of who was busy.
    """

    name: Annotated[str, Meta(min_length=1, max_length=32)]
    serve: tuple[str, ...] | None = None
    url: str | None = None
    processes: tuple[str, ...] = ()


class GridSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A grid: every combination of images x tokens (of each picture) x outputs x load x cache, on every topology.

    `loads` are shares of what `baseline` can do with the cell's requests, measured once for each kind of request;
    `rates` are requests per second instead. A run lasts `seconds`, after `warmup_seconds` at the same rate that do
    not count, with `min_requests` to `max_requests` that do. Caches are 'cold' with requests that nobody has seen, and
    'warm' with other questions about pictures that each server has just been asked about.

    A server may take `start_timeout_s` to start. With `awake`, no core of this machine sleeps meanwhile (needs root):
    what loads are compared by then is not also how long the machine slept between requests.

    `judged` names the topology that should nowhere be more than `most_worse` times the best of the others.
    """

    title: str = "Topologies"
    note: str = ""
    topologies: Annotated[tuple[Topology, ...], Meta(min_length=1, max_length=8)] = msgspec.field(name="topology")
    baseline: str = "agg"
    judged: str | None = None
    most_worse: Positive = 1.03
    images: Annotated[tuple[Annotated[int, Meta(ge=0, le=1000)], ...], Meta(**_LEVELS)] = (0, 1, 2, 4, 8)
    tokens: Annotated[tuple[Annotated[int, Meta(ge=1, le=100_000)], ...], Meta(**_LEVELS)] = (64, 256)
    outputs: Annotated[tuple[Count, ...], Meta(**_LEVELS)] = (16, 128)
    loads: tuple[Positive, ...] = ()
    rates: tuple[Positive, ...] = ()
    caches: Annotated[tuple[Cache, ...], Meta(**_LEVELS)] = ("cold",)
    seeds: Count = 3
    seconds: Positive = 30.0
    warmup_seconds: Annotated[float, Meta(ge=0)] = 1.0
    min_requests: Count = 4
    max_requests: Count = 1000
    arrivals: Pattern = "poisson"
    text_tokens: Count = 32
    image_format: Literal["jpeg", "png", "webp"] = "jpeg"
    pixels_per_token: Count = 1024
    capacity_requests: Annotated[int, Meta(ge=2)] = 16
    capacity_open: Count = 4
    timeout_s: Positive = 120.0
    start_timeout_s: Positive = 300.0
    order_seed: int = 0
    awake: bool = False
    environment: dict[str, str] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Of the topologies, in the file's order."""
        return tuple(one.name for one in self.topologies)

    @property
    def is_by_share(self) -> bool:
        """Whether loads are shares of the baseline's capacity."""
        return bool(self.loads)


def read_grid(path: Path) -> GridSpec:
    """Read and check a grid file. Raises `InvalidSettingError`."""
    try:
        spec = decode_toml(path.read_bytes(), GridSpec)
    except OSError as error:
        raise InvalidSettingError(f"'{path}' cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidSettingError(
            f"'{path}' is no grid: {error}", hint="docs/guides/benchmarking.md shows one; fields have these names"
        ) from error
    return checked(spec)


def checked(spec: GridSpec) -> GridSpec:
    """The grid, if its parts fit. Raises `InvalidSettingError`."""
    if len(set(spec.names)) < len(spec.names):
        raise InvalidSettingError("Two topologies of the grid have the same name")
    for one in spec.topologies:
        if (one.serve is None) == (one.url is None):
            raise InvalidSettingError(f"Topology '{one.name}' needs either serve = [...] or url = \"...\"")
    for role, name in (("baseline", spec.baseline), ("judged", spec.judged)):
        if name is not None and name not in spec.names:
            raise InvalidSettingError(
                f"{role} is '{name}', which is no topology", hint=f"Known: {', '.join(spec.names)}"
            )
    if spec.judged == spec.baseline:
        raise InvalidSettingError("judged and baseline are the same topology")
    if bool(spec.loads) == bool(spec.rates):
        raise InvalidSettingError("A grid has either loads (shares of the baseline's capacity) or rates (per second)")
    return spec
