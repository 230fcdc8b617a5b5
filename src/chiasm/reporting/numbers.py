"""Every number of the serving report: what it is called, its unit, its formula, and where it comes from.

Tables are made of these, so a number that is not here cannot be shown; docs/reference/numbers.md prints them.
"""

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from chiasm.reporting.units import in_bytes, in_count, in_ms, in_percent

Unit = Literal["ms", "bytes", "count", "per_s", "tokens_per_s", "share", "s"]

_SHOWN: dict[Unit, Callable[[Any], str]] = {
    "ms": in_ms,
    "bytes": in_bytes,
    "count": in_count,
    "per_s": in_count,
    "tokens_per_s": in_count,
    "share": in_percent,
    "s": lambda value: in_ms(None if value is None else 1e3 * value),
}


class Number(msgspec.Struct, frozen=True, kw_only=True):
    """One number. `metric` is a name of `/metrics`, a field of a receipt, a setting, or what the client measured.

    `source` is the file whose code says the formula.
    """

    key: str
    title: str
    unit: Unit
    formula: str
    metric: str
    source: str

    def shown(self, value: float | None) -> str:
        """The value with its unit."""
        return _SHOWN[self.unit](value)


def _number(key: str, title: str, unit: Unit, formula: str, metric: str, source: str) -> Number:
    return Number(key=key, title=title, unit=unit, formula=formula, metric=metric, source=source)


_RECEIPT = "observability/receipt.py"
_METRICS = "observability/metrics.py"
_MEMORY = "observability/memory.py"
_BENCH = "bench/metrics"
_REPORT = "reporting"

_ALL = (
    _number("requests", "requests", "count", "sent in the cell", "client", "bench/summary.py"),
    _number("finished", "finished", "count", "whole answers received", "client", "bench/summary.py"),
    _number("errors", "errors", "count", "requests - finished: errors, time-outs, lost", "client", "bench/summary.py"),
    _number("rate", "requests / s", "per_s", "finished requests / window", "client", f"{_BENCH}/throughput.py"),
    _number("tokens_rate", "tokens / s", "tokens_per_s", "output tokens / window", "client", f"{_BENCH}/throughput.py"),
    _number("ttft_p50", "TTFT p50", "ms", "median of first - sent", "client", f"{_BENCH}/ttft.py"),
    _number("ttft_p95", "TTFT p95", "ms", "95th percentile of first - sent", "client", f"{_BENCH}/ttft.py"),
    _number("tpot_p50", "TPOT p50", "ms", "median of (last - first) / (n - 1)", "client", f"{_BENCH}/tpot.py"),
    _number("tpot_p95", "TPOT p95", "ms", "95th percentile of (last - first) / (n - 1)", "client", f"{_BENCH}/tpot.py"),
    _number("e2el_p50", "E2EL p50", "ms", "median of end - sent", "client", f"{_BENCH}/e2el.py"),
    _number("e2el_p95", "E2EL p95", "ms", "95th percentile of end - sent", "client", f"{_BENCH}/e2el.py"),
    _number("prompt_tokens", "prompt tokens", "count", "mean over requests", "chiasm_prompt_tokens_total", _METRICS),
    _number("concurrency", "open", "count", "requests open at once, by the plan", "client", f"{_REPORT}/cells.py"),
    _number("images", "pictures", "count", "pictures of a request, by the plan", "client", f"{_REPORT}/cells.py"),
    _number(
        "stage", "stage", "ms", "mean of the stage's charge to TTFT", "chiasm_stage_seconds", f"{_BENCH}/stages.py"
    ),
    _number(
        "unaccounted", "unaccounted", "ms", "receipt's TTFT - sum of its stages", "receipt.unaccounted_s", _RECEIPT
    ),
    _number(
        "unaccounted_share",
        "unaccounted",
        "share",
        "median of unaccounted / TTFT of the receipt",
        "receipt.unaccounted_s",
        f"{_BENCH}/stages.py",
    ),
    _number("outside", "outside", "ms", "client's TTFT - receipt's TTFT", "receipt.ttft_s", f"{_BENCH}/stages.py"),
    _number(
        "stage_total", "TTFT mean", "ms", "stages + unaccounted + outside", "receipt.ttft_s", f"{_BENCH}/stages.py"
    ),
    _number(
        "cached_tokens",
        "prompt tokens cached",
        "share",
        "gain of cached / gain of prompt tokens",
        "chiasm_cached_tokens_total",
        f"{_REPORT}/cells.py",
    ),
    _number(
        "avoided_share",
        "pictures not encoded",
        "share",
        "gain of avoided encodes / gain of media items in prompts",
        "chiasm_worker_encodes_avoided_prefix_total",
        f"{_REPORT}/cells.py",
    ),
    _number(
        "server_cached_tokens",
        "prompt tokens cached",
        "share",
        "cached / prompt tokens since the start",
        "chiasm_cached_tokens_total",
        f"{_REPORT}/sections.py",
    ),
    _number(
        "server_avoided_share",
        "pictures not encoded",
        "share",
        "avoided encodes / media items in prompts since the start",
        "chiasm_worker_encodes_avoided_prefix_total",
        f"{_REPORT}/sections.py",
    ),
    _number(
        "avoided",
        "avoided encodes",
        "count",
        "pictures by what made encoding unnecessary, since the start",
        "chiasm_worker_encodes_avoided_embedding_total",
        "workers/local.py",
    ),
    _number(
        "encoded",
        "encoded",
        "count",
        "pictures that went through the tower",
        "chiasm_worker_encoded_items_total",
        "workers/local.py",
    ),
    _number("part_used", "used", "bytes", "of the part, now", "chiasm_memory_used_bytes", _MEMORY),
    _number("part_peak", "most so far", "bytes", "of the part, since the start", "chiasm_memory_peak_bytes", _MEMORY),
    _number("part_reserved", "at most", "bytes", "the part's bound", "chiasm_memory_reserved_bytes", _MEMORY),
    _number("rss", "resident", "bytes", "VmRSS", "chiasm_process_rss_bytes", _MEMORY),
    _number("pss", "share of it", "bytes", "Pss of smaps_rollup", "chiasm_process_pss_bytes", _MEMORY),
    _number("peak_rss", "most so far", "bytes", "VmHWM", "chiasm_process_peak_rss_bytes", _MEMORY),
    _number("swap", "swap", "bytes", "VmSwap", "chiasm_process_swap_bytes", _MEMORY),
    _number("allocator_used", "allocator uses", "bytes", "uordblks + hblkhd", "chiasm_allocator_used_bytes", _MEMORY),
    _number("allocator_kept", "keeps", "bytes", "fordblks", "chiasm_allocator_kept_bytes", _MEMORY),
    _number(
        "out_of_memory",
        "out of memory",
        "count",
        "steps and encodings that ended for want of memory",
        "chiasm_worker_out_of_memory_total",
        "engines/embedded/memory.py",
    ),
    _number(
        "growth_used",
        "each request uses",
        "bytes",
        "(most used by requests meanwhile - before) / requests",
        "chiasm_memory_used_bytes",
        f"{_REPORT}/growth.py",
    ),
    _number(
        "growth_rss",
        "each adds resident",
        "bytes",
        "(most resident meanwhile - before) / requests",
        "chiasm_process_pss_bytes",
        f"{_REPORT}/growth.py",
    ),
    _number(
        "growth_kept",
        "stays resident after all",
        "bytes",
        "resident after - before",
        "chiasm_process_pss_bytes",
        f"{_REPORT}/growth.py",
    ),
    _number("limit", "limit", "count", "the setting", "setting", "settings/sections.py"),
    _number("limit_bytes", "limit", "bytes", "the setting", "setting", "settings/sections.py"),
    _number("limit_s", "limit", "s", "the setting", "setting", "settings/sections.py"),
    _number("lifetime", "kept for", "s", "the setting", "setting", "gateway/retention.py"),
    _number("status", "HTTP", "count", "status of the answer", "chiasm_requests_total", "protocol/openai/errors.py"),
    _number("receipt_ttft", "TTFT", "s", "first token leaves - request received", "receipt.ttft_s", _RECEIPT),
    _number("receipt_e2e", "E2EL", "s", "end - request received", "receipt.e2e_s", _RECEIPT),
    _number("receipt_stage", "stage", "s", "the instants charged to the stage", "receipt.stages_s", _RECEIPT),
    _number("receipt_decode", "decode", "s", "end - first token", "receipt.decode_s", _RECEIPT),
    _number("receipt_items", "pictures", "count", "media items", "receipt.num_items", _RECEIPT),
    _number("receipt_prompt", "prompt tokens", "count", "prompt tokens", "receipt.num_prompt_tokens", _RECEIPT),
    _number("receipt_cached", "of them cached", "count", "cached prompt tokens", "receipt.num_cached_tokens", _RECEIPT),
    _number("receipt_output", "output tokens", "count", "output tokens", "receipt.num_output_tokens", _RECEIPT),
    _number(
        "context",
        "context, tokens",
        "count",
        "longest prompt plus output",
        "GET /v1/models",
        "gateway/routes/models.py",
    ),
    _number("uptime", "running for", "s", "now - start", "GET /debug/state", "gateway/routes/state.py"),
    _number("took", "report took", "s", "end - beginning of the report", "client", f"{_REPORT}/gathering.py"),
    _number(
        "change", "change", "share", "median now / median of the baseline - 1", "client", f"{_REPORT}/comparison.py"
    ),
    _number(
        "change_low",
        "at least",
        "share",
        "2.5th percentile of the change, resampled",
        "client",
        f"{_REPORT}/comparison.py",
    ),
    _number(
        "change_high",
        "at most",
        "share",
        "97.5th percentile of the change, resampled",
        "client",
        f"{_REPORT}/comparison.py",
    ),
    _number("before", "baseline", "ms", "median of the baseline's values", "client", f"{_REPORT}/comparison.py"),
    _number("now", "now", "ms", "median of this report's values", "client", f"{_REPORT}/comparison.py"),
)
NUMBERS = {number.key: number for number in _ALL}
"""By key."""
assert len(NUMBERS) == len(_ALL), "two numbers have the same key"
