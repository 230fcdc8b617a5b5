"""Chiasm in front of vLLM servers: what is asked, and what came of it."""

import json
import urllib.error
import urllib.request
from contextlib import contextmanager

from chiasm.launch.local import background_server
from chiasm.launch.vllm.process import connection_to
from chiasm.settings import resolve
from tests.e2e.served import ask, picture
from tests.vllm.servers import vllm_python

RED, BLUE, GREEN = picture("red", shift=3), picture("blue", "square", shift=3), picture("green", shift=5)
LARGE = picture("yellow", "square", size=700)
QUESTION = "What color is the shape in image 1?"
PROMPTS = {
    "text": ("Hello, who are you?",),
    "one": (RED, "What color is the shape?"),
    "same again": (RED, "What shape is in the image?"),
    "large": (LARGE, "What color is the shape?"),
    "two": (RED, BLUE, QUESTION),
    "repeats": (BLUE, RED, BLUE, BLUE, QUESTION),
    "interleaved": ("First:", GREEN, "then:", RED, "and last:", BLUE, QUESTION),
}
PATIENCE = [
    "routing.probe_timeout_s=120",
    "gateway.request_timeout_s=240",
    "vllm.start_timeout_s=600",
    "vllm.stop_timeout_s=3",
]


class Gateway:
    """A running server of this process."""

    def __init__(self, server):
        self.address = server.address
        self.backend = server._backend

    def post(self, path, body):
        """Status and body."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}{path}", data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=300) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def metrics(self, process):
        """The page of counters of a server that was started here."""
        connection = connection_to(self.backend.supervisor._processes[process].address, 60)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def chat(self, parts, **fields):
        """The answer to a question, greedy."""
        body = {"model": "tiny_vlm", "messages": ask(*parts), "temperature": 0, "max_tokens": 24} | fields
        return self.post("/v1/chat/completions", body)

    def logprobs(self, parts, **fields):
        """Token and log probability of each of the answer's tokens."""
        return _logprobs(self.chat(parts, logprobs=True, **fields))

    def logprobs_of(self, process, parts):
        """The same of a server that was started here, asked without this gateway."""
        crew = self.backend._crew
        connection = connection_to(self.backend.supervisor._processes[process].address, 300)
        body = {"model": crew.model.name, "messages": ask(*parts), "temperature": 0, "max_tokens": 24, "logprobs": True}
        headers = {"content-type": "application/json", "authorization": f"Bearer {crew._token}"}
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            response = connection.getresponse()
            return _logprobs((response.status, json.load(response)))
        finally:
            connection.close()

    def receipt(self, parts, **fields):
        """The receipt of a question's answer."""
        status, body = self.chat(parts, chiasm={"receipt": True}, **fields)
        assert status == 200, body
        return body["chiasm"]["receipt"]

    def stream(self, parts, **fields):
        """The events of a streamed answer."""
        body = {"model": "tiny_vlm", "messages": ask(*parts), "temperature": 0, "max_tokens": 24, "stream": True}
        data = json.dumps(body | fields).encode()
        request = urllib.request.Request(
            f"{self.address}/v1/chat/completions", data, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as response:
            return [json.loads(line[6:]) for line in response if line.startswith(b"data: {")]


@contextmanager
def gateway(*overrides):
    """A server with settings of its own, in this process; its workers are wherever the settings say."""
    given = ["gateway.port=0", *PATIENCE, f"vllm.python={vllm_python()}", *overrides]
    settings = resolve(environment={}, overrides=given).settings
    with background_server(settings, lambda what, share: None) as server:
        yield Gateway(server)


def _logprobs(answer):
    status, body = answer
    assert status == 200, body
    return [(one["token"], one["logprob"]) for one in body["choices"][0]["logprobs"]["content"]]


def assert_same(found, expected):
    """Token for token, and log probabilities as near as float32 gets."""
    assert [token for token, _ in found] == [token for token, _ in expected]
    for (_, one), (_, other) in zip(found, expected, strict=True):
        assert abs(one - other) < 1e-4, (found, expected)
