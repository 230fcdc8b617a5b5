"""Worker processes are replaced one after the other while clients ask: no request fails, no answer changes."""

import json
import threading
import urllib.error
import urllib.request

import pytest
from typer.testing import CliRunner

from chiasm.cli.app import app
from chiasm.errors import RequestError
from chiasm.launch.local import background_server
from chiasm.settings import resolve
from tests.e2e.served import ask, picture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
PROMPTS = (("Hello, who are you?",), (picture("red", shift=3), "What color is the shape?"))
NUM_CLIENTS = 2
PAUSE_S = 0.05
SPLIT = {"routing.topology": "e-p-d", "routing.prefills": 2}
RESTARTS = {
    "agg": ({"routing.topology": "agg"}, ["--all"], {"worker-0", "worker-1"}),
    "e-p-d": (SPLIT, ["prefill-1"], {"prefill-1"}),
}


def served(**values):
    keys = {"gateway.api_keys": ["client"], "gateway.admin_keys": ["operator"], "gateway.port": 0}
    return background_server(resolve(values=keys | values).settings, lambda what, share: None)


def said(server, parts):
    body = json.dumps({"messages": ask(*parts), "max_tokens": 12, "temperature": 0}).encode()
    headers = {"Authorization": "Bearer client", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.address}/v1/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


class Clients:
    """Threads that ask until the block ends; what went wrong is in `failures`."""

    def __init__(self, server):
        self.failures, self.num_answers = [], 0
        self._server, self._stop = server, threading.Event()
        self._wanted = {parts: said(server, parts) for parts in PROMPTS}
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(NUM_CLIENTS)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(120)

    def _ask(self):
        while not self._stop.is_set():
            for parts in PROMPTS:
                self._stop.wait(PAUSE_S)  # workers that start need the cores, too
                try:
                    answer = said(self._server, parts)
                except urllib.error.HTTPError as error:
                    answer = error.read().decode()
                if answer != self._wanted[parts]:
                    self.failures.append(answer)
                self.num_answers += 1


def command(server, *line, key="operator"):
    return CliRunner().invoke(app, ["fleet", *line, "--server", server.address, "--api-key", key])


def listed(server):
    return {one["name"]: one for one in json.loads(command(server, "list", "--json").stdout)}


@pytest.mark.parametrize("topology", RESTARTS)
def test_no_request_fails_while_workers_are_replaced(topology):
    settings, words, renewed = RESTARTS[topology]
    with served(**settings) as server:
        before = listed(server)
        with Clients(server) as clients:
            result = command(server, "restart", *words)
        after = listed(server)
        assert result.exit_code == 0, result.output
        assert clients.failures == []
        assert clients.num_answers > len(renewed)
        assert after.keys() == before.keys()
        assert all(one["state"] == "ready" for one in after.values())
        assert {name for name in after if after[name]["pid"] != before[name]["pid"]} == renewed


def test_the_only_worker_of_a_stage_is_replaced_only_when_that_is_meant():
    with served(**{"routing.topology": "e-pd"}) as server:
        refused = command(server, "restart", "prefill-0")
        assert isinstance(refused.exception, RequestError)
        assert "alone" in refused.exception.hint
        with Clients(server) as clients:
            assert command(server, "restart", "prefill-0", "--alone").exit_code == 0
        assert clients.failures == []
        with pytest.raises(RequestError, match="no process"):
            raise command(server, "restart", "prefill-7").exception
        assert command(server, "list", key="client").exit_code != 0


def test_a_server_in_one_process_says_that_it_has_none():
    with served() as server:
        assert listed(server) == {}
        assert "no worker processes" in str(command(server, "restart", "worker-0").exception)
