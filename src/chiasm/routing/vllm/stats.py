"""A server's load and counters, from its Prometheus page."""

import re

from chiasm.protocol.worker import WorkerStats

_SAMPLE = re.compile(r"^(vllm:\w+)(?:\{([^}]*)\})?\s+(\S+)", re.MULTILINE)
_RANK = re.compile(r'engine="(\d+)"')
_TOTALS = {
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "output_tokens",
    "vllm:prefix_cache_hits_total": "cached_prompt_tokens",
    "vllm:mm_cache_queries_total": "media_cache_queries",
    "vllm:mm_cache_hits_total": "media_cache_hits",
    "vllm:num_preemptions_total": "preemptions",
}
"""Counters of vLLM -> the names under which their sums over the fleet are shown."""


def stats_of(page: str, *, is_healthy: bool, num_open: int, max_running: int, rank: int | None) -> WorkerStats:
    """Read a metrics page. `rank` is the data-parallel rank that is meant; None: all of them."""
    sums: dict[str, float] = {}
    for name, labels, value in _SAMPLE.findall(page):
        found = _RANK.search(labels)
        if rank is None or found is None or int(found[1]) == rank:
            sums[name] = sums.get(name, 0.0) + float(value)
    running = int(sums.get("vllm:num_requests_running", 0))
    return WorkerStats(
        is_healthy=is_healthy,
        num_running=running,
        num_waiting=int(sums.get("vllm:num_requests_waiting", 0)),
        num_free_slots=max(max_running - running, 0),
        num_cached_blocks=0,
        num_cached_embeddings=0,
        num_held_embeddings=0,
        num_open_requests=num_open,
        totals={name: sums[key] for key, name in _TOTALS.items() if key in sums},
    )


NOTHING = stats_of("", is_healthy=True, num_open=0, max_running=0, rank=None)
