"""The sections. Every field has a unit in its name, a range and a sentence, which the reference page prints."""

from typing import Annotated, Literal

from msgspec import Meta

from chiasm.settings.adapters import AdapterSettings
from chiasm.settings.base import Section
from chiasm.settings.cluster import ClusterSettings
from chiasm.settings.media import MediaSettings
from chiasm.settings.vllm import VllmSettings


class GatewaySettings(Section, frozen=True, kw_only=True):
    """The HTTP front."""

    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0 picks a free one.")] = 8000
    api_keys: Annotated[
        tuple[str, ...], Meta(description="Accepted bearer keys; none means no authentication. Never printed.")
    ] = ()
    admin_keys: Annotated[
        tuple[str, ...],
        Meta(description="Bearer keys that open /admin/, and nothing else; none closes it. Never printed."),
    ] = ()
    keys_file: Annotated[
        str | None,
        Meta(description="TOML file with tenants, their limits and hashes of their keys; read again when it changes."),
    ] = None
    audit_file: Annotated[
        str | None, Meta(description="File to which acts of operators are appended; none: they go to the log.")
    ] = None
    store: Annotated[
        str,
        Meta(
            description="Where several gateways over one fleet share limits and what they know: "
            "'redis://host:port/db'; empty: this is the only gateway."
        ),
    ] = ""
    store_user: Annotated[
        str, Meta(max_length=256, description="User of the store's access list. Empty: its default user.")
    ] = ""
    store_password: Annotated[str, Meta(description="Password of the store. Never printed.")] = ""
    store_password_file: Annotated[
        str | None, Meta(description="File with the password of the store, instead of the setting.")
    ] = None
    store_gateways: Annotated[
        int,
        Meta(
            ge=1,
            le=1024,
            description="By how many gateways limits are divided where the store has not answered since the start.",
        ),
    ] = 2
    cache_scope: Annotated[
        Literal["tenant", "shared"],
        Meta(description="Who may find what a request left in caches: callers of the same tenant, or all."),
    ] = "tenant"
    max_running_requests: Annotated[int, Meta(ge=1, description="Requests served at once; more wait.")] = 64
    max_queued_requests: Annotated[int, Meta(ge=0, description="Requests that may wait; more get 429.")] = 256
    refusal_delay_s: Annotated[
        float,
        Meta(
            ge=0,
            le=10,
            description="How long the answer waits to a tenant that asks on beyond its limits, "
            "more than 10 times a second; 0: not at all.",
        ),
    ] = 1.0
    max_body_bytes: Annotated[int, Meta(ge=1024, description="Largest request body.")] = 64 * 2**20
    request_timeout_s: Annotated[float, Meta(gt=0, description="Deadline of a request, queueing included.")] = 120.0
    ttft_slo_s: Annotated[
        float, Meta(gt=0, description="Time to first token that is aimed at; who will miss it is told to autoscalers.")
    ] = 5.0
    keep_alive_s: Annotated[float, Meta(gt=0, description="Idle time after which a connection is closed.")] = 75.0
    drain_timeout_s: Annotated[float, Meta(ge=0, description="How long running requests may finish on SIGTERM.")] = 30.0
    max_receipts: Annotated[int, Meta(ge=1, description="Recent receipts kept for /debug/receipts.")] = 1024
    receipt_ttl_s: Annotated[float, Meta(gt=0, description="How long a receipt is kept at most.")] = 86_400.0


class EngineSettings(Section, frozen=True, kw_only=True):
    """The engine. vLLM takes model, served_name, dtype, threads and max_model_tokens from here, too."""

    kind: Annotated[
        Literal["embedded", "vllm"],
        Meta(description="embedded: torch in processes of Chiasm's; vllm: servers of vLLM, set up in [vllm]."),
    ] = "embedded"
    model: Annotated[str, Meta(description="Model directory; empty serves the packaged tiny model.")] = ""
    served_name: Annotated[str, Meta(description="Model name in the API; empty takes the directory's name.")] = ""
    dtype: Annotated[
        Literal["float32", "bfloat16"], Meta(description="Compute type; bfloat16 weights are widened for float32.")
    ] = "float32"
    threads: Annotated[
        int, Meta(ge=0, description="Threads of the model's arithmetic, 256 at most; 0 takes the machine's cores.")
    ] = 0
    max_running: Annotated[int, Meta(ge=1, description="Sequences computed at once (KV slots).")] = 16
    max_waiting: Annotated[int, Meta(ge=1, description="Sequences that may wait for a slot.")] = 1024
    max_model_tokens: Annotated[
        int, Meta(ge=16, description="Longest prompt plus output; the model's own limit caps it.")
    ] = 4096
    max_step_tokens: Annotated[int, Meta(ge=16, description="Tokens computed in one step, decode rows first.")] = 512
    max_encode_embeddings: Annotated[
        int, Meta(ge=1, description="Embeddings made between two steps; one picture may exceed it alone.")
    ] = 1024
    max_encode_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Time for encoding between two steps, by what it took lately; likewise.",
        ),
    ] = 0.05
    max_media_step_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Time of a step that computes prompts with pictures while texts come, by what steps took "
            "lately. Steps get twice their fixed cost in any case.",
        ),
    ] = 0.005
    prefix_cache_bytes: Annotated[int, Meta(ge=0, description="KV kept for prompts with the same start; 0: none.")] = (
        256 * 2**20
    )
    embedding_cache_bytes: Annotated[int, Meta(ge=0, description="Encoded pictures kept for reuse; 0: none.")] = (
        256 * 2**20
    )
    embedding_ttl_s: Annotated[
        float, Meta(ge=0, description="Time after which an encoded picture is not reused any more; 0: no limit.")
    ] = 0.0
    max_held_embedding_bytes: Annotated[
        int, Meta(ge=1, description="Embeddings in use by running and waiting requests; more get 429.")
    ] = 2 * 2**30
    decoder: Annotated[
        Literal["auto", "native", "torch"],
        Meta(
            description="What computes tokens, pictures of Qwen-VL, CLIP and SigLIP and texts of BERT's kind: "
            "native (C), torch, or native where it can be used."
        ),
    ] = "auto"
    short_slice_s: Annotated[
        float,
        Meta(
            ge=0,
            le=0.1,
            description="Time slice of threads that plan, pass on and answer, the gateway's included: with one shorter "
            "than the system's they do not wait for threads that compute (Linux 6.12 or later, niceness 0 or more). "
            "Engines that compute prompts have twice as much, but the system's while they encode. 0: the system's.",
        ),
    ] = 0.0
    pack_weights: Annotated[
        bool, Meta(description="Reorder weights for oneDNN in the torch decoder; costs start-up time.")
    ] = True


class PoolingSettings(Section, frozen=True, kw_only=True):
    """Embedding, classifying and scoring. Model, dtype and threads are those of the engine section."""

    task: Annotated[
        Literal["auto", "generate", "embed", "classify", "token_classify", "late_interaction", "yes_no"],
        Meta(
            description="What the model is served for; auto: what its files say. yes_no: a language model that says "
            "whether a document answers a query."
        ),
    ] = "auto"
    pooling: Annotated[
        Literal["auto", "cls", "last", "mean", "step"],
        Meta(description="Which tokens' states count; auto: what the model's files say."),
    ] = "auto"
    max_tokens: Annotated[int, Meta(ge=0, description="Longest input; 0: what the model's files say.")] = 0
    max_inputs: Annotated[int, Meta(ge=1, description="Inputs, documents or pairs in one request.")] = 2048
    max_batch_tokens: Annotated[
        int, Meta(ge=1, description="Tokens computed together; one input may exceed it alone.")
    ] = 1024
    max_waiting_tokens: Annotated[int, Meta(ge=1, description="Tokens that may wait; more get 429.")] = 1_000_000
    max_delay_s: Annotated[
        float, Meta(ge=0, description="How long a request may be passed over by those with fewer tokens.")
    ] = 0.1
    logit_mean: Annotated[
        float | None, Meta(description="Taken off logits before activation; none: the model's own.")
    ] = None
    logit_sigma: Annotated[
        float | None, Meta(description="What logits are divided by after that; none: the model's own.")
    ] = None
    step_token: Annotated[str, Meta(description="With pooling 'step': the token whose states count.")] = ""
    yes_token: Annotated[str, Meta(description="Answer of a yes_no model that counts for a document.")] = "yes"  # noqa: S105 - a word, no secret
    no_token: Annotated[str, Meta(description="Answer that counts against it.")] = "no"  # noqa: S105 - a word, no secret
    instruction: Annotated[str, Meta(description="What a yes_no model is told to judge by.")] = (
        "Given a web search query, retrieve relevant passages that answer the query"
    )
    io_processors: Annotated[
        tuple[str, ...],
        Meta(description="Processors that /pooling offers, by entry-point name; none: those of Chiasm's that fit."),
    ] = ()


class TransferSettings(Section, frozen=True, kw_only=True):
    """Tensors on their way between workers: embeddings from encoders, keys and values from prefill to decode."""

    connector: Annotated[
        Literal["shm", "tcp", "file"],
        Meta(description="shm: shared memory of one host; tcp: any host; file: a shared folder, for debugging."),
    ] = "shm"
    host: Annotated[str, Meta(description="Address at which other workers reach this one's tensors (tcp).")] = (
        "127.0.0.1"
    )
    directory: Annotated[str, Meta(description="Shared folder of the file connector.")] = ""
    max_bytes: Annotated[int, Meta(ge=2**20, description="Tensors offered to other workers at once.")] = 512 * 2**20
    ttl_s: Annotated[float, Meta(gt=0, description="Time for which a tensor is offered.")] = 60.0
    timeout_s: Annotated[float, Meta(gt=0, description="Time to take one tensor over.")] = 5.0


class RoutingSettings(Section, frozen=True, kw_only=True):
    """Which workers there are and which way requests take among them."""

    topology: Annotated[
        Literal["local", "agg", "e-pd", "e-p-d", "auto"],
        Meta(
            description="local: one worker in the server's process; agg: whole workers; e-pd, e-p-d: split stages; "
            "auto: whole workers that encode for each other where that is predicted to be faster."
        ),
    ] = "local"
    workers: Annotated[int, Meta(ge=0, le=64, description="Worker processes of agg and auto.")] = 2
    encoders: Annotated[int, Meta(ge=0, le=64, description="Encoder processes of e-pd and e-p-d.")] = 1
    prefills: Annotated[int, Meta(ge=0, le=64, description="Prefill processes (with decode in e-pd).")] = 1
    decodes: Annotated[int, Meta(ge=0, le=64, description="Decode processes of e-p-d.")] = 1
    members: Annotated[
        tuple[str, ...],
        Meta(description="Further workers, started by hand: 'http://host:port' or 'unix:/path'."),
    ] = ()
    directory: Annotated[
        str, Meta(description="Folder of this host in which workers started by hand register; empty: none is watched.")
    ] = ""
    worker_token: Annotated[
        str, Meta(description="Shared secret of server and workers; needed when workers listen on TCP. Never printed.")
    ] = ""
    worker_niceness: Annotated[
        int,
        Meta(
            ge=0,
            le=19,
            description="How far worker processes, servers of vLLM too, step back where they and the gateway want the "
            "same core; media.niceness comes on top. 0: not at all.",
        ),
    ] = 0
    policy: Annotated[
        Literal["round_robin", "least_work", "content", "adaptive"],
        Meta(description="How a worker is chosen; adaptive predicts finish times from measured stage costs."),
    ] = "adaptive"
    costs: Annotated[
        str,
        Meta(
            description="File of `chiasm profile` on the gateway's machine: stage costs to predict with before any are "
            "learned; empty: made-up ones."
        ),
    ] = ""
    crowding: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(
            description="How far workers take cores from each other, which adaptive heeds. 0: each has its own; 1: "
            "while one computes, another waits; none: as threads and cores of those started here say, otherwise 0.",
        ),
    ] = None
    retry_slow_encoder_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86400,
            description="After how long without work a worker that encoded more slowly than the fleet is tried again, "
            "by one request; each further disappointment doubles it, up to 16 times. 0: never.",
        ),
    ] = 60.0
    max_candidates: Annotated[
        int, Meta(ge=2, description="Workers of a kind looked at for one request; of more, so many at random.")
    ] = 12
    forward: Annotated[
        Literal["metadata", "raw"],
        Meta(description="What prefill gets of encoded media: metadata only, or the media again (to compare)."),
    ] = "metadata"
    overlap: Annotated[
        Literal["auto", "always", "never"],
        Meta(description="Whether prompts are computed while later pictures are encoded; auto: where that should pay."),
    ] = "auto"
    max_encode_attempts: Annotated[
        int, Meta(ge=1, le=8, description="Encoders tried for one item before it is encoded locally or refused.")
    ] = 2
    local_encode: Annotated[
        Literal["fallback", "never"],
        Meta(description="Whether a prefill worker encodes from pixels when no encoder delivered."),
    ] = "fallback"
    health_interval_s: Annotated[float, Meta(gt=0, description="Time between looks at a worker's load.")] = 0.5
    probe_interval_s: Annotated[float, Meta(gt=0, description="Time between real tiny requests to an idle worker.")] = (
        15.0
    )
    probe_timeout_s: Annotated[float, Meta(gt=0, description="Time for such a request.")] = 10.0
    restart_backoff_s: Annotated[
        float, Meta(gt=0, description="First pause before a dead worker is started again; doubles up to 60 s.")
    ] = 0.5
    wait_for_worker_s: Annotated[
        float,
        Meta(
            ge=0,
            description="How long a request waits for a worker while none is up for one of its stages; 0: not at all.",
        ),
    ] = 30.0
    max_requests_waiting_for_worker: Annotated[
        int,
        Meta(
            ge=0,
            description="Requests that wait so at once; more get 503. They hold slots of gateway.max_running_requests.",
        ),
    ] = 32
    quarantine_deaths: Annotated[
        int,
        Meta(ge=0, description="Workers that may die of one request or picture before it is refused; 0: no limit."),
    ] = 2
    quarantine_s: Annotated[float, Meta(gt=0, description="For how long deaths are held against a request.")] = 60.0


class ObservabilitySettings(Section, frozen=True, kw_only=True):
    """Logs and traces."""

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least severe line logged.")
    ] = "info"
    log_format: Annotated[Literal["text", "json"], Meta(description="Lines for people, or one JSON object a line.")] = (
        "text"
    )
    otlp_endpoint: Annotated[
        str,
        Meta(description="OpenTelemetry collector that gets traces, as http://127.0.0.1:4318; empty: none are made."),
    ] = ""
    trace_share: Annotated[
        float, Meta(ge=0, le=1, description="Share of requests traced whose callers have not decided that.")
    ] = 1.0


class Settings(Section, frozen=True, kw_only=True):
    """All sections; built once by `resolve` in the command line or in `LLM`."""

    gateway: GatewaySettings = GatewaySettings()
    media: MediaSettings = MediaSettings()
    engine: EngineSettings = EngineSettings()
    adapters: AdapterSettings = AdapterSettings()
    pooling: PoolingSettings = PoolingSettings()
    transfer: TransferSettings = TransferSettings()
    routing: RoutingSettings = RoutingSettings()
    vllm: VllmSettings = VllmSettings()
    cluster: ClusterSettings = ClusterSettings()
    observability: ObservabilitySettings = ObservabilitySettings()
