"""The section of vLLM servers, started by Chiasm or already running."""

from typing import Annotated, Literal

from msgspec import Meta

from chiasm.settings.base import Section

_Share = Annotated[float, Meta(gt=0, le=1)]


class VllmSettings(Section, frozen=True, kw_only=True):
    """vLLM as the engine (`engine.kind = "vllm"`)."""

    python: Annotated[
        str, Meta(description="Interpreter of the environment that has vLLM; empty: the one that runs Chiasm.")
    ] = ""
    workers_file: Annotated[
        str, Meta(description="TOML file naming servers that run already; none is started then.")
    ] = ""
    assume_version: Annotated[
        str, Meta(description="Release whose calls and flags are used for versions that Chiasm does not know.")
    ] = ""
    device: Annotated[
        Literal["auto", "cpu", "cuda"], Meta(description="What servers compute on; auto asks the installed vLLM.")
    ] = "auto"
    devices: Annotated[
        tuple[str, ...],
        Meta(
            description="CUDA devices of each server in the order of their start, as in ['0', '1,2']; servers may "
            "share one. Empty: consecutive devices, as many as each needs."
        ),
    ] = ()
    tensor_parallel: Annotated[int, Meta(ge=1, description="Devices that share each layer.")] = 1
    pipeline_parallel: Annotated[int, Meta(ge=1, description="Groups of devices that have the layers in turn.")] = 1
    data_parallel: Annotated[
        int, Meta(ge=1, description="Engines behind one server; each is a target of its own for routing.")
    ] = 1
    expert_parallel: Annotated[bool, Meta(description="Spread experts over devices instead of splitting each.")] = False
    kv_cache_bytes: Annotated[
        int, Meta(ge=0, description="Memory for keys and values of each server; 0: vLLM's own choice (1 GiB on CPU).")
    ] = 0
    memory_share: Annotated[_Share, Meta(description="Share of a device that a server with keys and values takes.")] = (
        0.9
    )
    encoder_memory_share: Annotated[_Share, Meta(description="Share of a device that an encoder takes.")] = 0.3
    max_running: Annotated[int, Meta(ge=1, description="Sequences that a server computes at once.")] = 128
    max_step_tokens: Annotated[int, Meta(ge=0, description="Tokens computed in one step; 0: vLLM's own choice.")] = 0
    max_adapters: Annotated[int, Meta(ge=1, description="LoRA adapters that a server computes in one step.")] = 4
    max_cached_adapters: Annotated[
        int, Meta(ge=1, description="LoRA adapters that a server keeps in memory; others are read again when used.")
    ] = 32
    picture_hint: Annotated[
        tuple[int, ...],
        Meta(
            description="Width and height in pixels of the largest picture to reserve memory for, as in [1024, 1024]; "
            "larger ones are refused. Empty: the largest that the model takes."
        ),
    ] = ()
    eager: Annotated[
        Literal["auto", "yes", "no"], Meta(description="Whether to do without compiled graphs; auto: on CPU only.")
    ] = "auto"
    ec_connector: Annotated[
        Literal["chiasm", "example"],
        Meta(
            description="How embeddings reach prefill: Chiasm's connector (transport: transfer.connector), or vLLM's "
            "example, with which an embedding that is lost ends the engine."
        ),
    ] = "chiasm"
    ec_wait_s: Annotated[float, Meta(gt=0, description="How long prefill waits for an embedding before it fails.")] = (
        5.0
    )
    kv_connector: Annotated[
        Literal["nixl", "mooncake"], Meta(description="How keys and values reach decode in e-p-d; mooncake: CUDA only.")
    ] = "nixl"
    mooncake_protocol: Annotated[
        Literal["rdma", "tcp"], Meta(description="How Mooncake moves them; tcp where there is no RDMA device.")
    ] = "rdma"
    kv_events: Annotated[
        Literal["auto", "yes", "no"],
        Meta(
            description="Whether started servers say what their prefix caches evict, so that routing forgets it; "
            "auto: where pyzmq is installed (extra 'vllm')."
        ),
    ] = "auto"
    special_tokens: Annotated[
        Literal["refuse", "pass"],
        Meta(description="What to do with texts that spell a special token, which vLLM would take for one."),
    ] = "refuse"
    start_timeout_s: Annotated[float, Meta(gt=0, description="Time for a server to start.")] = 900.0
    stop_timeout_s: Annotated[float, Meta(ge=0, description="Time for a server to end by itself.")] = 15.0
    extra_arguments: Annotated[
        tuple[str, ...], Meta(description="Further arguments for all servers, added after Chiasm's own.")
    ] = ()
    encoder_arguments: Annotated[tuple[str, ...], Meta(description="Further arguments for encoders.")] = ()
    prefill_arguments: Annotated[tuple[str, ...], Meta(description="Further arguments for servers that prefill.")] = ()
    decode_arguments: Annotated[
        tuple[str, ...], Meta(description="Further arguments for servers that only decode.")
    ] = ()
