"""The failure table with Chiasm in front: whatever goes wrong once is mended, and what always does ends with a code.

Relays between the gateway and servers of the tests make it go wrong. No server dies of it, and nobody else notices.
"""

import pytest

from benchmarks.vllm_fronts import first_time
from tests.vllm.crews import MARKS
from tests.vllm.fronts import CODES, FAULTS, OF_ENCODERS, asked_about, front, neighbour_of
from tests.vllm.gateways import assert_same

pytestmark = MARKS


@pytest.fixture
def over_relays(fleet, tmp_path, request):
    """With a second encoder where the first one's faults are tried."""
    encoders = [fleet.shm, fleet.tcp] if request.getfixturevalue("name") in OF_ENCODERS else [fleet.shm]
    with front(tmp_path, [one.url for one in encoders], fleet.consumer.url) as made:
        yield made
    assert all(server.is_alive for server in fleet[:3])


@pytest.fixture
def neighbour(over_relays):
    with neighbour_of(over_relays):
        yield


@pytest.mark.parametrize("name", FAULTS)
def test_what_goes_wrong_once_is_mended(over_relays, embedded, neighbour, name):
    over_relays.set(FAULTS[name], first_time)
    asked = asked_about()
    assert_same(over_relays.gateway.logprobs(asked), embedded.logprobs(asked))


@pytest.mark.parametrize("name", FAULTS)
def test_what_always_goes_wrong_ends_with_a_code(over_relays, neighbour, name):
    over_relays.set(FAULTS[name])
    status, body = over_relays.gateway.chat(asked_about())
    assert status >= 400, body
    assert body["error"]["code"] in CODES
