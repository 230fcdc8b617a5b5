"""The failure table with Chiasm in front: whatever goes wrong once is mended, and what always does ends with a code.

Relays between the gateway and servers of the tests make it go wrong. No server dies of it, and nobody else notices.
"""

import threading
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from benchmarks.vllm_fronts import faults, first_time
from tests.vllm.crews import MARKS, workers_file
from tests.vllm.gateways import QUESTION, Gateway, assert_same, gateway
from tests.vllm.pictures import new_picture, raw
from tests.vllm.relays import Relay, relay, unchanged

pytestmark = MARKS
FAULTS = {name: fault for name, fault in faults(None).items() if name != "nothing wrong"}
OF_ENCODERS = [name for name, fault in FAULTS.items() if fault.consumer is unchanged]
CODES = {"embedding_unavailable", "layout_mismatch", "engine_dead", "invalid_request"}


class Front(NamedTuple):
    """A gateway, and what is between it and its servers."""

    gateway: Gateway
    encoders: list[Relay]
    consumer: Relay

    def set(self, fault, change=lambda change: change):
        """Have it happen from now on; all encoders share what has become of it."""
        asked, answered = change(fault.encoder), change(fault.encoded)
        for encoder in self.encoders:
            encoder.asked, encoder.answered = asked, answered
        self.consumer.asked = change(fault.consumer)


@pytest.fixture
def front(fleet, tmp_path, request):
    """Over a consumer that never encodes; with a second encoder where the first one's faults are tried."""
    encoders = [fleet.shm, fleet.tcp] if request.getfixturevalue("name") in OF_ENCODERS else [fleet.shm]
    with ExitStack() as closing:
        relays = [closing.enter_context(relay(one.url)) for one in encoders]
        consumer = closing.enter_context(relay(fleet.consumer.url))
        listed = {f"e{number}": (one.url, '["encode"]') for number, one in enumerate(relays)}
        listed["pd"] = (consumer.url, '["prefill", "decode"]')
        own = ("engine.kind=vllm", "routing.topology=e-pd", "routing.local_encode=never")
        yield Front(closing.enter_context(gateway(*own, workers_file(tmp_path, listed))), relays, consumer)
    assert all(server.is_alive for server in fleet[:3])


@pytest.fixture
def neighbour(front):
    """Somebody else's stream, which must come to its end as if nothing had happened."""
    events = []
    story = (("Tell me a story.",), {"max_tokens": 60, "min_tokens": 60})
    thread = threading.Thread(target=lambda: events.extend(front.gateway.stream(story[0], **story[1])))
    thread.start()
    yield
    thread.join(120)
    assert "length" in [choice["finish_reason"] for event in events for choice in event.get("choices", [])]


def parts():
    """A question about a picture that no cache has, of the size that the faults are for."""
    return raw(new_picture())["image_url"]["url"], QUESTION


@pytest.mark.parametrize("name", FAULTS)
def test_what_goes_wrong_once_is_mended(front, embedded, neighbour, name):
    front.set(FAULTS[name], first_time)
    asked = parts()
    assert_same(front.gateway.logprobs(asked), embedded.logprobs(asked))


@pytest.mark.parametrize("name", FAULTS)
def test_what_always_goes_wrong_ends_with_a_code(front, neighbour, name):
    front.set(FAULTS[name])
    status, body = front.gateway.chat(parts())
    assert status >= 400, body
    assert body["error"]["code"] in CODES
