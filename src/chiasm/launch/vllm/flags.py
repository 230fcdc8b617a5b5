"""The command line of a vLLM 0.32 server, by its role."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from chiasm.launch.processes.specs import WorkerSpec
from chiasm.launch.vllm.cache_events import events_flags
from chiasm.launch.vllm.devices import is_encoder
from chiasm.protocol.worker import Role
from chiasm.routing.vllm.cache_events import EventsAddress
from chiasm.settings import Settings
from chiasm.settings.process import THREAD_VARIABLES, unless_set

_NO_DOMAIN = "none.invalid"  # RFC 2606: nothing resolves there, so that a server fetches nothing
_STRUCTURED = {"backend": "guidance", "disable_any_whitespace": True}  # the embedded engine's, as it uses it
_EXTENSION = "chiasm.engines.vllm.forgetting.Forgetting"
_SCHEDULER = "chiasm.engines.vllm.scheduler.CheckedScheduler"
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM takes
_ON_SHARED_CORES = THREAD_VARIABLES | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""The second has an engine compute where it schedules, as on a GPU, unless its model is split. Else it and its worker
take a core from whoever computes: each waits for the other without sleeping, for up to a second after the last step."""
EC_MODULE = "chiasm.engines.vllm.ec_connector"


class Place(NamedTuple):
    """Where one server finds and keeps things.

    Attributes:
        python: Interpreter of vLLM's environment.
        directory: The model's.
        address: Where it is to listen: `unix:` and a path, or `http://host:port`.
        spool: Folder of media that it may read; None: media travel in the calls.
        embeddings: Folder through which embeddings go from server to server.
        device: 'cpu' or 'cuda'.
        takes_images: Whether the model has eyes.
        takes_videos: Whether it has a place for videos.
        needs_tower: Whether consumers of embeddings must load the vision tower, which they never run: vLLM 0.32 takes
            no deepstack embeddings without it.
        kv_port: Where it tells others of its keys and values.
        adapters: Names and folders of the adapters that it starts with.
        cache_events: Where it says what its prefix cache stores and evicts; None: nowhere.
    """

    python: str
    directory: Path
    served_name: str
    address: str
    spool: Path | None
    embeddings: Path
    device: str
    takes_images: bool
    needs_tower: bool
    kv_port: int
    takes_videos: bool = False
    adapters: Sequence[tuple[str, str]] = ()
    cache_events: EventsAddress | None = None


def arguments_of(spec: WorkerSpec, settings: Settings, place: Place) -> list[str]:
    """The command line of a server: interpreter, program, flags."""
    vllm = settings.vllm
    line = [place.python, "-m", "vllm.entrypoints.openai.api_server"]  # `vllm serve` looks up a package named vllm
    line += ["--model", str(place.directory), "--served-model-name", place.served_name]
    line += _listening(place.address)
    line += ["--dtype", settings.engine.dtype, "--max-model-len", str(settings.engine.max_model_tokens)]
    line += ["--max-num-seqs", str(vllm.max_running), "--generation-config", "vllm", "--disable-uvicorn-access-log"]
    line += ["--enable-prompt-tokens-details", "--enable-per-request-metrics", "--enable-prefix-caching"]
    line += ["--structured-outputs-config", json.dumps(_STRUCTURED)]
    if vllm.max_step_tokens:
        line += ["--max-num-batched-tokens", str(vllm.max_step_tokens)]
    if _is_eager(settings, place):
        line.append("--enforce-eager")
    line += _memory(spec, settings, place) + _media(spec, settings, place) + _transfer(spec, settings, place)
    if not is_encoder(spec):
        line += _parallelism(settings) + _adapters(settings, place) + events_flags(place.cache_events)
    return line + list(vllm.extra_arguments) + _own_arguments(spec, settings)


def environment_of(spec: WorkerSpec, settings: Settings, place: Place) -> dict[str, str]:
    """Variables that a server gets besides the ones it inherits."""
    variables = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    variables |= _further_calls(spec, settings, is_private=place.address.startswith("unix:"))
    if place.takes_images:
        variables["VLLM_MEDIA_CONNECTOR"] = "chiasm"  # its entry point is in the folder that Chiasm is imported from
    if hands_kv_over(spec):
        variables |= _kv_variables(settings, place)
    if place.device == "cpu":
        gib = max(1, -(-settings.vllm.kv_cache_bytes // 2**30))
        variables |= {"VLLM_CPU_KVCACHE_SPACE": str(gib), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        variables |= unless_set(_ON_SHARED_CORES)
        if settings.engine.threads:
            variables["OMP_NUM_THREADS"] = str(settings.engine.threads)
        if _is_eager(settings, place):
            variables["TORCHDYNAMO_DISABLE"] = "1"  # or the first request with logprobs compiles for half a minute
    return variables


def _kv_variables(settings: Settings, place: Place) -> dict[str, str]:
    host, port = settings.transfer.host, str(place.kv_port)
    if settings.vllm.kv_connector == "mooncake":
        return {"VLLM_MOONCAKE_BOOTSTRAP_PORT": port, "VLLM_HOST_IP": host}
    variables = {"VLLM_NIXL_SIDE_CHANNEL_HOST": host, "VLLM_NIXL_SIDE_CHANNEL_PORT": port}
    return variables | ({"UCX_TLS": "tcp,shm,self"} if place.device == "cpu" else {})


def _further_calls(spec: WorkerSpec, settings: Settings, *, is_private: bool) -> dict[str, str]:
    """Calls that ask for no key, for sockets that only this user opens. Elsewhere off, whatever is inherited."""
    loads_adapters = is_private and settings.adapters.roots and not is_encoder(spec)
    return {
        "VLLM_SERVER_DEV_MODE": "1" if is_private else "0",  # the calls that clear caches
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1" if loads_adapters else "0",
    }


def _listening(address: str) -> list[str]:
    if address.startswith("unix:"):
        return ["--uds", address.removeprefix("unix:")]
    parts = urlsplit(address)
    return ["--host", str(parts.hostname), "--port", str(parts.port)]


def takes_pixels(spec: WorkerSpec, settings: Settings) -> bool:
    """Whether a server may be sent pictures themselves: one that encodes, or decodes what such a one prefilled."""
    decodes_only = spec.roles == ("decode",) and settings.routing.local_encode == "fallback"
    return "encode" in spec.roles or decodes_only


def hands_embeddings_over(roles: Sequence[Role], settings: Settings, *, takes_images: bool) -> bool:
    """Whether embeddings go from a server to others, or come from them."""
    is_split = settings.routing.topology in ("e-pd", "e-p-d", "auto") and takes_images
    return is_split and (tuple(roles) == ("encode",) or "prefill" in roles)


def hands_kv_over(spec: WorkerSpec) -> bool:
    """Whether keys and values go from it to another server, or come from one."""
    return ("prefill" in spec.roles) != ("decode" in spec.roles)


def registers_kv(roles: Sequence[Role], settings: Settings) -> bool:
    """Whether a server keeps keys and values that others must be told of, since it does not say so itself."""
    return "prefill" in roles and "decode" not in roles and settings.vllm.kv_connector == "mooncake"


def _is_eager(settings: Settings, place: Place) -> bool:
    return settings.vllm.eager == "yes" or (settings.vllm.eager == "auto" and place.device == "cpu")


def _memory(spec: WorkerSpec, settings: Settings, place: Place) -> list[str]:
    vllm = settings.vllm
    if place.device == "cpu":
        return []
    share = vllm.encoder_memory_share if is_encoder(spec) else vllm.memory_share
    line = ["--gpu-memory-utilization", str(share)]
    if vllm.kv_cache_bytes and not is_encoder(spec):
        line += ["--kv-cache-memory-bytes", str(vllm.kv_cache_bytes)]
    return line


def _media(spec: WorkerSpec, settings: Settings, place: Place) -> list[str]:
    """What media a server takes: as many as a request may have, none where it cannot encode."""
    if not place.takes_images:
        return []
    limit: Any = settings.media.max_items if takes_pixels(spec, settings) or place.needs_tower else 0
    if limit and settings.vllm.picture_hint:
        width, height = settings.vllm.picture_hint
        limit = {"count": limit, "width": width, "height": height}
    limits = {"image": limit, "video": _video_limit(settings) if limit and place.takes_videos else 0}
    line = ["--limit-mm-per-prompt", json.dumps(limits), "--allowed-media-domains", _NO_DOMAIN]
    if place.spool is not None:
        line += ["--allowed-local-media-path", str(place.spool)]
    return line


def _video_limit(settings: Settings) -> Mapping[str, int]:
    """As many videos as pictures. What is reserved for one is two frames of the largest picture, which is no more."""
    limit = {"count": settings.media.max_items, "num_frames": 2}
    if settings.vllm.picture_hint:
        limit["width"], limit["height"] = settings.vllm.picture_hint
    return limit


def _transfer(spec: WorkerSpec, settings: Settings, place: Place) -> list[str]:
    line = []
    if hands_embeddings_over(spec.roles, settings, takes_images=place.takes_images):
        role = "ec_producer" if is_encoder(spec) else "ec_consumer"
        line += ["--ec-transfer-config", json.dumps(_ec(role, settings, place))]
        if settings.vllm.ec_connector == "chiasm":
            line += ["--worker-extension-cls", _EXTENSION]
            line += [] if is_encoder(spec) else ["--scheduler-cls", _SCHEDULER]
    if is_encoder(spec):
        line.append("--mm-encoder-only")
    if hands_kv_over(spec):
        role = "kv_producer" if "prefill" in spec.roles else "kv_consumer"
        line += ["--kv-transfer-config", json.dumps(_kv(role, settings, place))]
    return line


def _ec(role: str, settings: Settings, place: Place) -> Mapping[str, Any]:
    if settings.vllm.ec_connector == "example":
        extra = {"shared_storage_path": str(place.embeddings)}
        return {"ec_connector": "ECExampleConnector", "ec_role": role, "ec_connector_extra_config": extra}
    transfer = settings.transfer
    return {
        "ec_connector": "ChiasmECConnector",
        "ec_connector_module_path": EC_MODULE,
        "ec_role": role,
        "ec_connector_extra_config": {
            "transport": "tcp" if transfer.connector == "tcp" else "shm",
            "directory": str(place.embeddings),
            "max_bytes": transfer.max_bytes,
            "wait_s": settings.vllm.ec_wait_s,
            "ttl_s": transfer.ttl_s,
            "host": transfer.host,
        },
    }


def _kv(role: str, settings: Settings, place: Place) -> Mapping[str, Any]:
    if settings.vllm.kv_connector == "mooncake":
        extra = {"mooncake_protocol": settings.vllm.mooncake_protocol}
        return {"kv_connector": "MooncakeConnector", "kv_role": role, "kv_connector_extra_config": extra}
    return {"kv_connector": "NixlConnector", "kv_role": role, "kv_buffer_device": place.device}


def _parallelism(settings: Settings) -> list[str]:
    vllm, line = settings.vllm, []
    for name, size in (
        ("--tensor-parallel-size", vllm.tensor_parallel),
        ("--pipeline-parallel-size", vllm.pipeline_parallel),
        ("--data-parallel-size", vllm.data_parallel),
    ):
        if size > 1:
            line += [name, str(size)]
    return [*line, "--enable-expert-parallel"] if vllm.expert_parallel else line


def _adapters(settings: Settings, place: Place) -> list[str]:
    """Encoders get none: adapters that touch the vision tower are refused."""
    adapters, vllm = settings.adapters, settings.vllm
    if not (adapters.roots or adapters.preload):
        return []
    rank = next((one for one in _RANKS if one >= adapters.max_rank), _RANKS[-1])
    line = ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", str(vllm.max_adapters)]
    line += ["--max-cpu-loras", str(max(vllm.max_adapters, vllm.max_cached_adapters))]
    modules = [json.dumps({"name": name, "path": path}) for name, path in place.adapters]
    return [*line, "--lora-modules", *modules] if modules else line


def _own_arguments(spec: WorkerSpec, settings: Settings) -> list[str]:
    if is_encoder(spec):
        return list(settings.vllm.encoder_arguments)
    if spec.roles == ("decode",):
        return list(settings.vllm.decode_arguments)
    return list(settings.vllm.prefill_arguments)
