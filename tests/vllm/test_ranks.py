"""Engines behind one server are targets of their own: for load, and for what they have computed already."""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from chiasm.launch.vllm.process import connection_to
from tests.conditions import until
from tests.e2e.served import picture
from tests.vllm.crews import MARKS
from tests.vllm.test_cache_events import counted as counted_by_gateway

pytestmark = MARKS
ENGINES = {"worker-0": "0", "worker-0.1": "1"}
LONG = "Look closely. " * 40  # vLLM's cache on CPU is in blocks of 128 tokens


def counted(over_vllm, name):
    """One of vLLM's counters, by engine."""
    totals = dict.fromkeys(ENGINES.values(), 0.0)
    for line in over_vllm.metrics("worker-0").splitlines():
        if line.startswith(f"{name}{{"):
            totals[line.partition('engine="')[2].partition('"')[0]] += float(line.rpartition(" ")[2])
    return totals


def growth(before, after):
    return {engine: after[engine] - before[engine] for engine in before}


def until_grown(over_vllm, name, before, by):
    """Wait for a counter of both engines together: vLLM counts after it has answered."""
    asyncio.run(until(lambda: sum(growth(before, counted(over_vllm, name)).values()) >= by))


def at_once(ask, prompts):
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(ask, prompts))


def worker_of(receipt):
    (attempt,) = receipt["route"]["attempts"]
    return attempt["worker"]


def test_requests_go_to_the_engine_that_the_receipt_names(aggregated):
    name = "vllm:request_success_total"
    before = counted(aggregated, name)
    prompts = [(f"Count to {number}.", "Then say why.") for number in range(8)]
    served = Counter(ENGINES[worker_of(receipt)] for receipt in at_once(aggregated.receipt, prompts))
    assert set(served) == {"0", "1"}
    until_grown(aggregated, name, before, len(prompts))
    assert growth(before, counted(aggregated, name)) == served


def test_a_prompt_goes_where_its_start_was_computed(aggregated):
    prompts = [(picture("red", shift=60 + number), LONG, f"Question {number}?") for number in range(12)]
    homes = [worker_of(receipt) for receipt in at_once(aggregated.receipt, prompts)]
    assert set(homes) == set(ENGINES)
    for prompt, home in zip(prompts, homes, strict=True):
        before = counted(aggregated, "vllm:prefix_cache_hits_total")
        status, body = aggregated.chat((*prompt, "And another thing."), chiasm={"receipt": True})
        assert status == 200, body
        assert worker_of(body["chiasm"]["receipt"]) == home
        cached = body["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached >= 128
        until_grown(aggregated, "vllm:prefix_cache_hits_total", before, cached)
        assert growth(before, counted(aggregated, "vllm:prefix_cache_hits_total"))[ENGINES[home]] == cached


def test_each_engine_says_what_its_cache_has_lost(aggregated):
    before = counted_by_gateway(aggregated, "kv_caches_forgotten")
    connection = connection_to(aggregated.backend.supervisor._processes["worker-0"].address, 60)
    try:
        connection.request("POST", "/reset_prefix_cache")
        assert connection.getresponse().status == 200
    finally:
        connection.close()
    prompts = [(f"Count to {number}.", "Then say it with its next step.") for number in range(8)]
    assert {worker_of(receipt) for receipt in at_once(aggregated.receipt, prompts)} == set(ENGINES)
    asyncio.run(until(lambda: counted_by_gateway(aggregated, "kv_caches_forgotten") == before + 2))
    assert counted_by_gateway(aggregated, "kv_event_batches_missed") == 0
