"""Fleets worth a look, for so many devices."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from chiasm.advisor.capacity import Shape, capacity
from chiasm.simulator.calibration import Calibration
from chiasm.simulator.cluster import Cluster, adaptive, aggregated, colocated, disaggregated, split
from chiasm.simulator.traffic import RequestClass

_MAX_PARTS = 64
"""Devices up to which every division is looked at; more are divided in steps, so that there are as few divisions."""

_Division = tuple[Shape, Callable[[], Cluster]]


def candidates(num_devices: int, classes: Sequence[RequestClass], costs: Calibration) -> list[Cluster]:
    """The fleet that splits nothing, then of each way to split the one that can bear most.

    Encoders beside engines are looked at only where their interference was measured: without it they would be free.
    """
    if not any(one.num_images for one in classes):
        return [aggregated(num_devices)]
    ways = [_pairs(num_devices), _triples(num_devices)]
    if costs.interference is not None:
        ways.insert(0, _colocations(num_devices, costs.kv_tokens))
    best = [_best(list(way), classes, costs) for way in ways]
    return [aggregated(num_devices), adaptive(num_devices), *(one for one in best if one is not None)]


def _best(divisions: list[_Division], classes: Sequence[RequestClass], costs: Calibration) -> Cluster | None:
    if not divisions:
        return None
    return max(divisions, key=lambda one: capacity(one[0], classes, costs).per_s)[1]()


def _colocations(num_devices: int, kv_tokens: int) -> Iterable[_Division]:
    for number in (1, 2):
        shape = Shape(encoders=number * num_devices, serving=num_devices, is_shared=True)
        yield shape, partial(colocated, num_devices, encoders=number, kv_tokens=kv_tokens)


def _pairs(num_devices: int) -> Iterable[_Division]:
    for encoders in _parts(num_devices):
        rest = num_devices - encoders
        yield Shape(encoders=encoders, serving=rest), partial(disaggregated, encoders, rest)


def _triples(num_devices: int) -> Iterable[_Division]:
    for encoders in _parts(num_devices):
        for prefills in _parts(num_devices - encoders):
            rest = num_devices - encoders - prefills
            shape = Shape(encoders=encoders, prefills=prefills, decodes=rest)
            yield shape, partial(split, encoders, prefills, rest)


def _parts(num_devices: int) -> range:
    step = -(-num_devices // _MAX_PARTS)
    return range(step, num_devices, step)
