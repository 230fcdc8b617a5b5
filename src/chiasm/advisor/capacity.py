"""How many requests a second a fleet can bear at most, and which of its stages says so.

Closed forms, to be quick over many fleets; a simulation of the few best follows. The law: a stage keeps up as long as
the work that requests bring it is less than what its workers have time for.
"""

from collections.abc import Iterator, Sequence

import msgspec

from chiasm.advisor.stages import StageTimes, average
from chiasm.simulator.calibration import Calibration, Interference
from chiasm.simulator.cluster import Cluster
from chiasm.simulator.traffic import RequestClass


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet by numbers: of workers that only encode, that do all, that prefill and decode, that do one of the two.

    Attributes:
        is_shared: Whether encoders and engines are on the same devices.
        is_one_host: Whether all of it, the gateway and the client share one host's cores.
        kv_tokens: Room for contexts of the smallest engine; 0 takes the calibration's.
        encoder_factor: Of the slowest encoder, besides the calibration's.
    """

    encoders: int = 0
    whole: int = 0
    serving: int = 0
    prefills: int = 0
    decodes: int = 0
    is_shared: bool = False
    is_one_host: bool = False
    kv_tokens: int = 0
    encoder_factor: float = 1.0


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet bears: `per_s` is the least of `stages`, that of stage `binding`."""

    per_s: float
    binding: str
    stages: dict[str, float]


def shape_of(cluster: Cluster) -> Shape:
    """The numbers of a fleet."""
    roles = [frozenset(one.roles) for one in cluster.workers]
    apart = {one.device for one in cluster.workers if set(one.roles) == {"encode"}}
    return Shape(
        encoders=sum(one == {"encode"} for one in roles),
        whole=sum(one == {"encode", "prefill", "decode"} for one in roles),
        serving=sum(one == {"prefill", "decode"} for one in roles),
        prefills=sum(one == {"prefill"} for one in roles),
        decodes=sum(one == {"decode"} for one in roles),
        is_shared=any(one.device in apart for one in cluster.workers if set(one.roles) != {"encode"}),
        is_one_host=cluster.is_one_host,
        kv_tokens=min((one.kv_tokens for one in cluster.workers if "decode" in one.roles), default=0),
        encoder_factor=max(
            (one.encoder_factor for one in cluster.workers if set(one.roles) == {"encode"}), default=1.0
        ),
    )


def capacity(shape: Shape, classes: Sequence[RequestClass], costs: Calibration) -> Capacity:
    """The most requests a second that each stage, and therefore the fleet, can keep up with."""
    loads = _loads(shape, average(classes, costs), classes, costs)
    stages = {name: count / seconds for name, count, seconds in loads if seconds}
    binding = min(stages, key=lambda name: stages[name], default="")
    return Capacity(per_s=stages.get(binding, float("inf")), binding=binding, stages=stages)


def batch_of(classes: Sequence[RequestClass], costs: Calibration, kv_tokens: int) -> int:
    """Generations that run at once when an engine is full: by slots, and by room for contexts."""
    if not kv_tokens:
        return costs.max_running
    total = sum(one.share for one in classes)
    context = sum(
        one.share * (one.text_tokens + one.num_images * one.visual_tokens + one.output_tokens) for one in classes
    )
    return max(1, min(costs.max_running, int(kv_tokens * total / context)))


def _loads(
    shape: Shape, work: StageTimes, classes: Sequence[RequestClass], costs: Calibration
) -> Iterator[tuple[str, int, float]]:
    """Of each stage: its name, how many work at it, seconds of work that a request brings."""
    beside = costs.interference if costs.interference is not None else Interference()
    resident = beside.resident if shape.is_shared else 0.0
    decode_s = work.decode * _per_generation(classes, costs, shape.kv_tokens or costs.kv_tokens) * (1.0 + resident)
    if shape.is_one_host and costs.sharing is not None:
        batch = batch_of(classes, costs, shape.kv_tokens or costs.kv_tokens)
        steps = decode_s / (1.0 + resident) * costs.step_cores(batch, costs.step_s(batch))
        yield "cores", 1, _all_cores_s(shape, work, costs, steps_s=steps)
    if shape.whole:
        yield "media", shape.whole * costs.media_threads, work.media * (1.0 + beside.media_by_engine)
        yield "engine", shape.whole, work.encode + work.prefill + decode_s * (1.0 + beside.engine_by_media)
        return
    tax = (1.0 + resident) * (1.0 + (beside.prefill_by_encoder if shape.is_shared else 0.0))
    slower = costs.encoder_factor * shape.encoder_factor * (1.0 + (beside.encode_by_engine if shape.is_shared else 0.0))
    yield "media", shape.encoders * costs.media_threads, work.media
    yield "encoder", shape.encoders, work.encode * slower
    if shape.serving:
        yield "engine", shape.serving, work.prefill * tax + decode_s
    else:
        yield "prefill", shape.prefills, work.prefill * tax
        yield "decode", shape.decodes, decode_s


def _all_cores_s(shape: Shape, work: StageTimes, costs: Calibration, *, steps_s: float) -> float:
    """Seconds for which a request takes all cores of a host that has nothing idle, and steps so many CPU seconds."""
    sharing, is_apart = costs.sharing, not shape.whole
    assert sharing is not None, "asked of shared hosts only"
    found = steps_s + work.request * sharing.request + work.media * sharing.media + work.prefill * sharing.prefill
    found += work.encode * sharing.encode * (costs.encoder_factor * shape.encoder_factor if is_apart else 1.0)
    found += work.transfer * sharing.transfer if is_apart else 0.0
    found += work.kv_transfer * sharing.transfer if shape.decodes else 0.0
    return found / sharing.num_cores * sharing.slowdown_at(sharing.num_cores)


def _per_generation(classes: Sequence[RequestClass], costs: Calibration, kv_tokens: int) -> float:
    """What a generation's share of the steps costs in full batches, relative to steps of its own."""
    batch, alone_s = batch_of(classes, costs, kv_tokens), costs.step_s(1)
    return costs.step_s(batch) / batch / alone_s if alone_s else 0.0
