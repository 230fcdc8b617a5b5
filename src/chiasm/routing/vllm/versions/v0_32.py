"""vLLM 0.32."""

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from chiasm.errors import EngineError
from chiasm.protocol.kv import KvHandle, KvMetadata
from chiasm.protocol.media import EmbeddingHandle
from chiasm.routing.vllm.kv_register import KvPlace
from chiasm.routing.vllm.versions.base import Described

_KV_KIND = "vllm"
_KV_TTL_S = 60.0
_MAX_ADDRESS_BYTES = 64 * 2**10
_TIMED_FAMILIES = ("qwen2_5_vl",)
_Size = Annotated[int, Meta(ge=1, le=100_000)]


class _Metadata(msgspec.Struct):
    image_grid_thw: tuple[_Size, _Size, _Size] | None = None
    video_grid_thw: tuple[_Size, _Size, _Size] | None = None
    timestamps: tuple[float, ...] = ()


class _Entry(msgspec.Struct):
    item_indices: list[Annotated[int, Meta(ge=0)]]
    metadata: _Metadata


class _Answer(msgspec.Struct):
    ec_transfer_params: dict[str, msgspec.Raw] | None = None


class Version032:
    """References are metadata only; embeddings and keys are named by maps that the connectors fill and read."""

    name = "0.32"

    def hands_videos_over(self, family: str) -> bool:
        """See `Version`. Qwen2.5-VL counts positions by the seconds between frames, which no metadata have."""
        return family not in _TIMED_FAMILIES

    def reference(self, handle: EmbeddingHandle) -> Mapping[str, Any]:
        """See `Version`. The grid is flat: a list of grids is refused. A video's times are the encoder's own words."""
        kind, grid = handle.metadata.kind, handle.metadata.grid_thw
        metadata: dict[str, Any] = {} if grid is None else {f"{kind}_grid_thw": grid}
        if kind == "video" and (times := msgspec.json.decode(handle.address, type=_Entry).metadata.timestamps):
            metadata["timestamps"] = times
        return {"type": f"{kind}_embeds", f"{kind}_embeds": metadata, "uuid": handle.key}

    def ec_params(self, handles: Mapping[int, EmbeddingHandle]) -> Mapping[str, Any]:
        """See `Version`: the encoding server's own entry, with the places in this prompt."""
        params: dict[str, dict[str, Any]] = {}
        for place, handle in handles.items():
            entry = params.setdefault(handle.key, msgspec.json.decode(handle.address) | {"item_indices": []})
            entry["item_indices"].append(place)
        return params

    def described(self, body: bytes) -> Sequence[Described]:
        """See `Version`."""
        try:
            entries = msgspec.json.decode(body, type=_Answer).ec_transfer_params or {}
            read = {key: msgspec.json.decode(raw, type=_Entry) for key, raw in entries.items()}
        except (msgspec.DecodeError, RecursionError) as error:
            raise EngineError(f"The encoder's answer cannot be understood: {str(error)[:200]}") from error
        if any(len(raw) > _MAX_ADDRESS_BYTES for raw in map(bytes, entries.values())):
            raise EngineError(f"The encoder describes an embedding with more than {_MAX_ADDRESS_BYTES} bytes")
        return [
            Described(
                key,
                tuple(entry.item_indices),
                entry.metadata.image_grid_thw or entry.metadata.video_grid_thw,
                bytes(entries[key]).decode(),
                entry.metadata.timestamps,
            )
            for key, entry in read.items()
        ]

    def named_in_events(self, call: str) -> Mapping[str, Any]:
        """See `Version`."""
        return {"session_id": call, "vllm_xargs": {"kv_cache_report_mode": "full"}}

    def kv_wanted(self, call: str) -> Mapping[str, Any]:
        """See `Version`. Mooncake keeps them by `transfer_id`; NIXL chooses names of its own."""
        nobody = dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
        return {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": call, **nobody}

    def kv_taken(self, handle: KvHandle) -> Mapping[str, Any]:
        """See `Version`: word for word what the prefilling server said."""
        params: Mapping[str, Any] = msgspec.json.decode(handle.address)
        return params

    def kv_offered(self, params: Mapping[str, Any] | None, metadata: KvMetadata) -> KvHandle | None:
        """See `Version`."""
        if not params or not params.get("do_remote_prefill"):
            return None
        return _kv_handle(str(params.get("remote_request_id", "")), params, metadata)

    def kv_registered(self, call: str, place: KvPlace, metadata: KvMetadata) -> KvHandle:
        """See `Version`: Mooncake's form."""
        params = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "transfer_id": call,
            "remote_bootstrap_addr": place.register,
            "remote_engine_id": place.engine,
        }
        return _kv_handle(call, params, metadata)


def _kv_handle(key: str, params: Mapping[str, Any], metadata: KvMetadata) -> KvHandle:
    return KvHandle(
        connector=_KV_KIND,
        key=key,
        address=msgspec.json.encode(params).decode(),
        metadata=metadata,
        expires_at_s=time.time() + _KV_TTL_S,
    )
