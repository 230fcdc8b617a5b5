"""A server of vLLM in an actor: it answers, ends with what holds it, and is placed again."""

import socket
from urllib.parse import urlsplit

import pytest

from tests.ray.conftest import placed
from tests.ray.test_cluster import PROMPTS, said
from tests.vllm.servers import MODEL, vllm_python

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        not vllm_python().exists(),
        reason=f"vLLM's environment is not made, there is no {vllm_python()}: scripts/venv-vllm, or CHIASM_VLLM_PYTHON",
    ),
]


def listens(address):
    parts = urlsplit(address)
    try:
        socket.create_connection((parts.hostname, parts.port), 5).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def server(cluster):
    values = {
        "engine.kind": "vllm",
        "engine.model": str(MODEL),
        "engine.dtype": "float32",
        "routing.topology": "agg",
        "routing.workers": 1,
        "vllm.python": str(vllm_python()),
        "vllm.kv_cache_bytes": 2**30,
    }
    with placed(cluster, 800.0, **values) as made:
        yield made


def test_a_server_of_vllm_is_placed_and_answers(server):
    assert server.nodes.keys() == {"gateway-0", "worker-0"}
    for answer in [said(server.address, parts) for parts in PROMPTS]:
        assert answer, "it says something"
        assert not answer.startswith("error ")


def test_one_whose_actor_is_taken_away_ends_and_is_placed_again(server):
    before, address = server.nodes["worker-0"], server.server._listed["worker-0"].address
    wanted = [said(server.address, parts) for parts in PROMPTS]
    assert listens(address)
    server.kill_actor("worker-0")
    server.until(lambda: not listens(address))
    server.until(lambda: server.nodes.get("worker-0", before)[1] not in (0, before[1]), 600.0)
    server.until(lambda: [said(server.address, parts) for parts in PROMPTS] == wanted)
