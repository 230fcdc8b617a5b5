"""Every number of the console, by the label beside it. A test compares these with the page's own labels."""

from chiasm.reporting.numbers import Number, Unit

_STATE = "gateway/routes/state.py"
_WORKER = "protocol/worker.py"
_FLEET = "protocol/fleet.py"
_RECEIPT = "observability/receipt.py"


def _of(title: str, unit: Unit, formula: str, metric: str, source: str) -> Number:
    return Number(key=title, title=title, unit=unit, formula=formula, metric=metric, source=source)


_ALL = (
    _of("Requests ended", "per_s", "gain / seconds between two looks", "chiasm_requests_total", _STATE),
    _of("Output tokens", "per_s", "gain / seconds between two looks", "chiasm_output_tokens_total", _STATE),
    _of("Running", "count", "requests with a slot; beside it those queued", "chiasm_requests_running", _STATE),
    _of("First token, median", "ms", "median over the receipts shown", "receipt.ttft_s", _RECEIPT),
    _of(
        "Prompt tokens cached", "share", "cached / prompt tokens since the start", "chiasm_cached_tokens_total", _STATE
    ),
    _of(
        "Pictures not encoded",
        "count",
        "cached, of those in prompts that were computed",
        "chiasm_cached_embeddings_total",
        _STATE,
    ),
    _of("sent to encoders", "count", "since the start", "chiasm_worker_encodes_sent_total", "routing/router.py"),
    _of(
        "encoded where prefilled", "count", "since the start", "chiasm_worker_encodes_local_total", "routing/router.py"
    ),
    _of(
        "avoided",
        "count",
        "by reason, since the start",
        "chiasm_worker_encodes_avoided_prefix_total",
        "routing/router.py",
    ),
    _of("came", "count", "since the start", "chiasm_media_items_total", _STATE),
    _of("taken from the cache", "count", "since the start", "chiasm_cached_embeddings_total", _STATE),
    _of("Requests since the start", "count", "by outcome", "chiasm_requests_total", _STATE),
    _of("encoding", "count", "calls under way; beside it the predicted wait", "GET /debug/state", _FLEET),
    _of("prefilling", "count", "calls under way; beside it the predicted wait", "GET /debug/state", _FLEET),
    _of("decoding", "count", "calls under way", "GET /debug/state", _FLEET),
    _of("in the engine", "count", "sequences that run, and that wait", "chiasm_worker_running", _WORKER),
    _of("free slots", "count", "slots without a sequence", "chiasm_worker_free_slots", _WORKER),
    _of("cached KV blocks", "count", "blocks kept for reuse", "chiasm_worker_cached_blocks", _WORKER),
    _of("cached embeddings", "count", "embeddings in memory", "chiasm_worker_cached_embeddings", _WORKER),
    _of("held embeddings", "count", "embeddings in use", "chiasm_worker_held_embeddings", _WORKER),
    _of("tensors offered", "count", "tensors that others may take", "chiasm_worker_offered_tensors", _WORKER),
    _of("memory", "bytes", "resident now, and the most so far", "chiasm_process_rss_bytes", "observability/memory.py"),
    _of(
        "used by requests", "bytes", "sum over parts of the kind", "chiasm_memory_used_bytes", "observability/memory.py"
    ),
    _of("used by caches", "bytes", "sum over parts of the kind", "chiasm_memory_used_bytes", "observability/memory.py"),
    _of("stage", "ms", "the instants charged to it; spans in the waterfall", "receipt.stages_s", _RECEIPT),
    _of("first token", "ms", "first token leaves - request received", "receipt.ttft_s", _RECEIPT),
    _of("end", "ms", "end - request received", "receipt.e2e_s", _RECEIPT),
    _of("prompt token", "count", "of the request", "receipt.num_prompt_tokens", _RECEIPT),
    _of("visual", "count", "of the prompt tokens", "receipt.num_visual_tokens", _RECEIPT),
    _of("cached", "count", "of the prompt tokens", "receipt.num_cached_tokens", _RECEIPT),
    _of("output token", "count", "of the request", "receipt.num_output_tokens", _RECEIPT),
    _of("picture", "count", "of the request", "receipt.num_items", _RECEIPT),
    _of("not encoded again", "count", "of the pictures", "receipt.num_cached_embeddings", _RECEIPT),
)
CONSOLE_NUMBERS = {number.key: number for number in _ALL}
"""By label."""
assert len(CONSOLE_NUMBERS) == len(_ALL), "two numbers have the same label"
