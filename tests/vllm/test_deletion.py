"""An operator deletes a medium, and everything that vLLM servers have made of it is gone."""

import hashlib
import json
import urllib.request

import pybase64

from chiasm.launch.vllm.process import connection_to
from tests.e2e.served import picture
from tests.vllm.crews import MARKS, OPERATOR

pytestmark = MARKS
QUESTION = "What do you see? " * 40  # vLLM's cache on CPU is in blocks of 128 tokens


def delete(gateway, url):
    identity = hashlib.sha256(pybase64.b64decode(url.partition(",")[2])).hexdigest()
    request = urllib.request.Request(
        f"{gateway.address}/admin/media/{identity}", method="DELETE", headers={"authorization": f"Bearer {OPERATOR}"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def cached(answer):
    status, body = answer
    assert status == 200, body
    return body["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_deleted_picture_is_encoded_and_read_anew(split):
    shown = picture("green", shift=91)
    ask, log = split.started.chat, split.log
    expected = ask((shown, QUESTION))
    assert cached(ask((shown, QUESTION))) >= 128
    before = log.encoded_by("encode-0")
    report = delete(split.started, shown)
    assert report["complete"]
    told = {one["worker"]: one for one in report["workers"]}
    assert told["encode-0"]["num_offers"] >= 1
    assert told["prefill-0"].get("error") is None
    again = ask((shown, QUESTION))
    assert cached(again) == 0
    assert again[1]["choices"] == expected[1]["choices"]
    assert log.sees_encoding_by("encode-0", after=before)


def test_a_whole_server_forgets_while_others_ask(aggregated):
    """Engines of one server forget together."""
    shown = picture("green", shift=92)
    for _ in range(2):
        aggregated.chat((shown, QUESTION))
    assert cached(aggregated.chat((shown, QUESTION))) >= 128
    assert delete(aggregated, shown)["complete"]
    assert cached(aggregated.chat((shown, QUESTION))) == 0
    assert cached(aggregated.chat((shown, QUESTION))) >= 128


def test_a_server_that_somebody_left_at_rest_goes_on(split, monkeypatch):
    """As a gateway does that is killed during a deletion."""
    monkeypatch.setattr("chiasm.routing.vllm.forgetting._LONGEST_REST_S", 1.0)
    connection = connection_to(split.started.backend.supervisor._processes["prefill-0"].address, 60)
    try:
        connection.request("POST", "/pause?mode=wait")
        assert connection.getresponse().status == 200
    finally:
        connection.close()
    assert split.started.chat(("Hello",))[0] == 200
