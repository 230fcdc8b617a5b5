"""Fleets worth a look, for so many devices or what they cost."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from chiasm.advisor.capacity import Shape, capacity
from chiasm.advisor.question import Tier
from chiasm.simulator.calibration import Calibration
from chiasm.simulator.cluster import Cluster, adaptive, aggregated, colocated, disaggregated, split
from chiasm.simulator.traffic import RequestClass

LEAST_KV_SHARE = 0.7
"""Of an engine's room for contexts: encoders that leave less of it cost more than they can win (docs/advisor.md)."""
_MAX_PARTS = 64
"""Devices up to which every division is looked at; more are divided in steps, so that there are as few divisions."""
_ROUNDING = 1e-9

_Division = tuple[Shape, Callable[[], Cluster]]


def candidates(
    num_devices: int, classes: Sequence[RequestClass], costs: Calibration, tier: Tier | None = None
) -> list[Cluster]:
    """The fleet that splits nothing, then of each way to split the one that can bear most; none costs more than it.

    Encoders beside engines are looked at only where their interference was measured: without it they would be free.
    """
    if not any(one.num_images for one in classes):
        return [aggregated(num_devices)]
    tier = tier or Tier()
    ways = [_pairs(num_devices, tier), _triples(num_devices, tier)]
    if costs.knows_encoders_beside and tier.kv_share >= LEAST_KV_SHARE:
        ways.insert(0, _colocations(num_devices, costs.kv_tokens, tier.kv_share))
    best = [_best(list(way), classes, costs) for way in ways]
    return [aggregated(num_devices), adaptive(num_devices), *(one for one in best if one is not None)]


def _best(divisions: list[_Division], classes: Sequence[RequestClass], costs: Calibration) -> Cluster | None:
    if not divisions:
        return None
    return max(divisions, key=lambda one: capacity(one[0], classes, costs).per_s)[1]()


def _colocations(num_devices: int, kv_tokens: int, kv_share: float) -> Iterable[_Division]:
    for number in (1, 2):
        make = partial(colocated, num_devices, encoders=number, kv_tokens=kv_tokens, kv_share=kv_share)
        shape = Shape(
            encoders=number * num_devices, serving=num_devices, is_shared=True, kv_tokens=int(kv_tokens * kv_share)
        )
        yield shape, make


def _pairs(num_devices: int, tier: Tier) -> Iterable[_Division]:
    terms = {"encoder_cost": tier.cost, "encoder_factor": tier.factor}
    for encoders, rest in _with_encoders(num_devices, tier.cost):
        shape = Shape(encoders=encoders, serving=rest, encoder_factor=tier.factor)
        yield shape, partial(disaggregated, encoders, rest, **terms)


def _triples(num_devices: int, tier: Tier) -> Iterable[_Division]:
    terms = {"encoder_cost": tier.cost, "encoder_factor": tier.factor}
    for encoders, rest in _with_encoders(num_devices, tier.cost):
        for prefills in _parts(rest):
            shape = Shape(encoders=encoders, prefills=prefills, decodes=rest - prefills, encoder_factor=tier.factor)
            yield shape, partial(split, encoders, prefills, rest - prefills, **terms)


def _with_encoders(num_devices: int, cost: float) -> Iterator[tuple[int, int]]:
    """Numbers of encoders of so much each, and of devices that the rest pays for."""
    for encoders in _parts(int((num_devices - 1) / cost + _ROUNDING) + 1):
        yield encoders, int(num_devices - encoders * cost + _ROUNDING)


def _parts(num_devices: int) -> range:
    step = -(-num_devices // _MAX_PARTS)
    return range(step, num_devices, step)
