"""Gateways and workers on the nodes of a cluster: same answers, what dies comes back, encoders come and go."""

import json
import threading
import urllib.error
import urllib.request

import pytest

from chiasm.launch.local import background_server
from chiasm.settings import resolve
from tests.e2e.served import ask, picture
from tests.ray.conftest import placed

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
PROMPTS = (("Hello, who are you?",), (picture("red", shift=3), "What color is the shape?"))
SCALING = {
    "routing.topology": "e-p-d",
    "cluster.gateways": 2,
    "cluster.scaling": "act",
    "cluster.max_encoders": 2,
    "cluster.encoder_queue_s": 0.005,
    "cluster.scaling_period_s": 0.5,
    "cluster.calm_s": 3.0,
}


def said(address, parts):
    """The answer's text, or 'error ' and the code of the error with which it ended."""
    body = json.dumps({"messages": ask(*parts), "max_tokens": 12, "temperature": 0}).encode()
    request = urllib.request.Request(f"{address}/v1/chat/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=150) as answer:
            return json.load(answer)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        return f"error {json.load(error)['error']['code']}"


def level(address, name):
    """A number of a gateway's metrics."""
    text = urllib.request.urlopen(f"{address}/metrics", timeout=30).read().decode()
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"chiasm_{name} "))


def answers(address):
    """Whether somebody listens there, without waiting for long."""
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def wanted():
    with background_server(resolve(values={"gateway.port": 0}).settings, lambda what, share: None) as server:
        return [said(server.address, parts) for parts in PROMPTS]


@pytest.fixture(scope="module")
def server(cluster, store):
    with placed(cluster, **SCALING, **{"gateway.store": store.url}) as made:
        yield made


def test_answers_are_those_of_one_process_and_workers_are_spread(server, wanted):
    assert len(server.addresses) == 2
    for address in server.addresses:
        assert [said(address, parts) for parts in PROMPTS] == wanted
    nodes = {node for node, _ in server.nodes.values()}
    assert server.nodes.keys() == {"gateway-0", "gateway-1", "encode-0", "prefill-0", "decode-0"}
    assert len(nodes) >= 2
    assert server.nodes["gateway-0"][0] != server.nodes["gateway-1"][0]


def test_gateways_share_what_they_know_through_the_store(server):
    server.until(lambda: [level(address, "gateways") for address in server.addresses] == [2, 2])


@pytest.mark.parametrize("name", ["encode-0", "prefill-0", "decode-0"])
def test_what_dies_is_placed_again_and_requests_recover_or_end_coded(server, wanted, name):
    before = server.nodes[name]
    found = []
    asking = threading.Thread(target=lambda: found.extend(said(server.address, parts) for parts in PROMPTS))
    (server.kill_process if name == "prefill-0" else server.kill_actor)(name)
    asking.start()
    server.until(lambda: server.nodes.get(name, before)[1] not in (0, before[1]))
    asking.join(200)
    assert len(found) == len(PROMPTS)
    for text, right in zip(found, wanted, strict=True):
        assert text == right or (text.startswith("error ") and text != "error internal_error")
    assert [said(server.address, parts) for parts in PROMPTS] == wanted


@pytest.mark.parametrize("number", [0, 1])
def test_a_gateway_that_dies_comes_back_where_it_was_while_the_other_answers(server, wanted, number):
    server.until(lambda: len(server.addresses) == 2)
    name, addresses, before = f"gateway-{number}", list(server.addresses), dict(server.nodes)
    (server.kill_process if number == 0 else server.kill_actor)(name)
    assert [said(addresses[1 - number], parts) for parts in PROMPTS] == wanted
    server.until(lambda: server.nodes.get(name, before[name])[1] not in (0, before[name][1]))
    server.until(lambda: answers(addresses[number]))
    assert [said(addresses[number], parts) for parts in PROMPTS] == wanted
    assert {one: server.nodes[one] for one in before if one != name} == {
        one: place for one, place in before.items() if one != name
    }
    assert server.nodes[name][0] == before[name][0]


def test_encoders_come_while_pictures_wait_and_go_when_they_do_not(server, wanted):
    stop, failed = threading.Event(), []

    def flood(number):
        shift = 0
        while not stop.is_set():
            shift += 1
            size = 256 + 28 * number
            address = server.addresses[number % 2]
            found = said(address, (picture("blue", size=size, shift=shift % 50), "What?"))
            if found.startswith("error ") and found != "error overloaded":
                failed.append(found)

    clients = [threading.Thread(target=flood, args=(number,), daemon=True) for number in range(6)]
    for client in clients:
        client.start()
    try:
        server.until(lambda: any(name not in ("encode-0",) for name in server.nodes if name.startswith("encode")))
        (extra,) = [name for name in server.nodes if name.startswith("encode") and name != "encode-0"]
        server.until(lambda: extra in server.server._listed)
        assert server.nodes[extra][0] != ""
    finally:
        stop.set()
        for client in clients:
            client.join(200)
    server.until(lambda: not [one for one in server.nodes if one.startswith("encode") and one != "encode-0"])
    assert failed == []
    assert [said(server.address, parts) for parts in PROMPTS] == wanted
