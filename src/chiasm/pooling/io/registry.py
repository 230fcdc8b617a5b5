"""Processors by name: those that ship with Chiasm, and those of installed packages (`chiasm.io_processors`)."""

import importlib
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points

from chiasm.errors import EngineStartError, UnsupportedModelError
from chiasm.pooling.io.base import IOProcessor
from chiasm.protocol.pooling.work import PoolingInfo

GROUP = "chiasm.io_processors"
"""Entry points of this group name a subclass of `IOProcessor`."""

_SHIPPED = {
    "reranker": ("chiasm.pooling.io.reranker", "Reranker"),
    "absa": ("chiasm.pooling.io.absa", "AspectSentiment"),
    "image_ranker": ("chiasm.pooling.io.image_ranker", "ImageRanker"),
}


def processor_class(name: str) -> type[IOProcessor]:
    """Import a processor. Installed packages come before what ships. Raises `EngineStartError`."""
    found = [point for point in entry_points(group=GROUP) if point.name == name]
    if found:
        kind = _imported(found[0])
    elif name in _SHIPPED:
        module, attribute = _SHIPPED[name]
        kind = getattr(importlib.import_module(module), attribute)
    else:
        known = ", ".join(sorted({*_SHIPPED, *(point.name for point in entry_points(group=GROUP))}))
        raise EngineStartError(f"There is no IO processor {name!r}", hint=f"Installed here: {known}")
    if not (isinstance(kind, type) and issubclass(kind, IOProcessor)):
        raise EngineStartError(f"The entry point {name!r} of {GROUP} is no IOProcessor")
    return kind


def make_processors(names: Iterable[str], info: PoolingInfo) -> dict[str, IOProcessor]:
    """Make processors for a model, in order. Raises `EngineStartError`, also when the model does not fit.

    Without names, those that ship and fit.
    """
    if names := tuple(names):
        return {name: processor_class(name)(info) for name in names}
    fitting: dict[str, IOProcessor] = {}
    for name in _SHIPPED:
        with suppress(UnsupportedModelError):
            fitting[name] = processor_class(name)(info)
    return fitting


def _imported(point: EntryPoint) -> object:
    try:
        found: object = point.load()
    except Exception as error:
        raise EngineStartError(f"The IO processor {point.name!r} cannot be imported: {error}") from error
    return found
