"""Encoders that announce something else than what they offer, or than what was asked for."""

from collections.abc import Callable

import msgspec

from chiasm.faults.fault import Fault, Processes, ResponseFault
from chiasm.faults.scenarios.base import Scenario
from chiasm.protocol.media import EmbeddingHandle
from chiasm.protocol.worker import EncodeResponse

replace = msgspec.structs.replace


def _handles(change: Callable[[EmbeddingHandle], EmbeddingHandle]) -> Callable[[Processes | None], Fault]:
    def changed(response: EncodeResponse) -> EncodeResponse:
        return replace(response, handles=tuple(change(handle) for handle in response.handles))

    return lambda _: ResponseFault(changed)


def _metadata(**fields: object) -> Callable[[Processes | None], Fault]:
    return _handles(lambda handle: replace(handle, metadata=replace(handle.metadata, **fields)))


def _wider(handle: EmbeddingHandle) -> EmbeddingHandle:
    rows, width = handle.metadata.shape
    return replace(handle, metadata=replace(handle.metadata, shape=(rows, 2 * width)))


def _fewer_rows(handle: EmbeddingHandle) -> EmbeddingHandle:
    rows, width = handle.metadata.shape
    return replace(handle, metadata=replace(handle.metadata, shape=(max(1, rows // 2), width)))


def _smaller(handle: EmbeddingHandle) -> EmbeddingHandle:
    """A grid that agrees with itself, of another picture."""
    found = handle.metadata
    side, width = found.merge_size, found.shape[1]
    smaller = replace(found, grid_thw=(1, side, side), num_embeddings=1, shape=(1, width))
    return replace(handle, metadata=smaller)


def _twice(response: EncodeResponse) -> EncodeResponse:
    return replace(response, handles=(*response.handles, *response.handles))


_MAKERS: dict[str, tuple[str, Callable[[Processes | None], Fault]]] = {
    "wrong-shape": ("rows of twice the width are announced", _handles(_wider)),
    "wrong-rows": ("half of the rows are announced", _handles(_fewer_rows)),
    "wrong-grid": ("the grid of a smaller picture is announced, with its rows", _handles(_smaller)),
    "wrong-type": ("another dtype is announced", _metadata(dtype="float16")),
    "wrong-identity": ("another picture's identity is announced", _metadata(identity="0" * 64)),
    "wrong-hash": ("a checksum of other bytes is announced", _metadata(checksum=f"xxh3_128:{'0' * 32}")),
    "wrong-revision": ("another model's revision is announced", _metadata(model_revision="another")),
    "wrong-contract": ("another version of the contract is announced", _metadata(version=99)),
    "wrong-address": (
        "the handle leads nowhere",
        _handles(lambda handle: replace(handle, address=f"{handle.address}0")),
    ),
    "duplicate-handles": ("two handles come for one picture", lambda _: ResponseFault(_twice)),
    "missing-handles": ("no handle comes", lambda _: ResponseFault(lambda response: replace(response, handles=()))),
}

SCENARIOS = tuple(
    Scenario(name=name, group="metadata", what=what, make=make, min_failures=1)
    for name, (what, make) in _MAKERS.items()
)
