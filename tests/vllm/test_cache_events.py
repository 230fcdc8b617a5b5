"""What a real server evicts stops attracting requests: routing is told by its cache events."""

import asyncio

import pytest

from chiasm.launch.vllm.process import connection_to
from tests.conditions import until
from tests.vllm.crews import MARKS, OPERATOR
from tests.vllm.gateways import gateway
from tests.vllm.test_deletion import QUESTION, cached

pytestmark = MARKS
SMALL = 'vllm.extra_arguments=["--num-gpu-blocks-override", "24", "--distributed-executor-backend", "uni"]'
SHORTER = "engine.max_model_tokens=1024"  # eight blocks of 128 tokens: three such prompts fit
_KNOWN = "characters of the start"


@pytest.fixture(scope="module")
def small():
    """One whole server with a cache for few prompts, started by Chiasm."""
    own = ("engine.kind=vllm", "routing.topology=agg", "routing.workers=1", "routing.policy=content")
    with gateway(*own, SMALL, SHORTER, f'gateway.admin_keys=["{OPERATOR}"]') as made:
        yield made


def asked(gateway, name):
    return gateway.chat((f"{name}. " + QUESTION,), max_tokens=2)


def is_known(gateway, name):
    """Whether routing counts on the server having a prompt's start; asking again makes it so."""
    return _KNOWN in gateway.receipt((f"{name}. " + QUESTION,), max_tokens=2)["route"]["reason"]


def counted(gateway, name):
    """A total of the fleet, as its metrics show it."""
    connection = connection_to(gateway.address, 60)
    try:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    finally:
        connection.close()
    values = [line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(f"chiasm_worker_{name}_total")]
    return float(values[0])


def test_a_start_that_is_evicted_is_forgotten_and_one_in_the_cache_is_not(small):
    asked(small, "first")
    assert cached(asked(small, "first")) >= 128
    assert is_known(small, "first")
    before = counted(small, "kv_starts_forgotten")
    for number in range(30):
        asked(small, f"other {number}")
    asyncio.run(until(lambda: counted(small, "kv_starts_forgotten") > before))
    assert is_known(small, "other 29")
    assert not is_known(small, "first")
    assert counted(small, "kv_event_batches_missed") == 0


def test_a_cleared_cache_attracts_nothing(small):
    asked(small, "kept")
    assert is_known(small, "kept")
    process = small.backend.supervisor._processes["worker-0"]
    connection = connection_to(process.address, 60)
    try:
        connection.request("POST", "/reset_prefix_cache")
        assert connection.getresponse().status == 200
    finally:
        connection.close()
    asked(small, "a step")  # vLLM says it with its next one
    asyncio.run(until(lambda: counted(small, "kv_caches_forgotten") >= 1))
    assert not is_known(small, "kept")
