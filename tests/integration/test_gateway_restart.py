"""The gateway's process is replaced while clients ask over kept connections and streams are open: nothing fails."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest
from typer.testing import CliRunner

from chiasm.cli.app import app
from chiasm.errors import EngineStartError, OverloadedError
from tests.architecture.repository import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
PATIENCE_S = 120
NUM_CLIENTS = 4
LONG_TEXT = "word " * 300
"""Takes a scripted worker three seconds."""


@contextmanager
def process(*command, **options):
    """A process; gone at the end."""
    running = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True, **options)
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
        running.stdout.close()


@contextmanager
def fleet(folder, config=""):
    """A gateway over two scripted workers that were started by hand: the process, its port, its settings file."""
    folder.chmod(0o700)
    file = folder / "settings.toml"
    file.write_text(
        '[gateway]\nport = 0\nadmin_keys = ["operator"]\ndrain_timeout_s = 60\n'
        f'[routing]\ntopology = "agg"\nworkers = 0\ndirectory = "{folder}"\n{config}'
    )
    with ExitStack() as stack:
        for number in range(2):
            worker = stack.enter_context(process("-m", "tests.faults.worker_process", str(folder / f"w{number}.sock")))
            assert worker.stdout.readline() == "ready\n"
        gateway = stack.enter_context(process("-m", "chiasm", "serve", "--json", "--config", str(file)))
        address = json.loads(gateway.stdout.readline())["address"]
        yield gateway, int(address.rpartition(":")[2]), file


def said(connection, text, *, stream=False):
    """The answer's words, over a connection that is kept; raises for anything but a whole answer."""
    body = {"prompt": text, "max_tokens": 1000, "stream": stream, "temperature": 0}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer operator"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    response = connection.getresponse()
    data = response.read().decode()
    assert response.status == 200, data
    if not stream:
        return json.loads(data)["choices"][0]["text"]
    assert data.endswith("data: [DONE]\n\n"), data[-300:]
    chunks = [json.loads(line[6:]) for line in data.splitlines() if line.startswith("data: {")]
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


class Load:
    """Clients that ask until the block ends, each over one connection as long as the server keeps it."""

    def __init__(self, port, texts):
        self.failures, self.num_answers = [], 0
        self._port, self._stop = port, threading.Event()
        self._texts = texts
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(NUM_CLIENTS)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _ask(self, number):
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        while not self._stop.is_set():
            text = self._texts[number % len(self._texts)]
            try:
                if said(connection, text, stream=number % 2 == 0).split() != text.split():
                    self.failures.append("another answer")
            except (AssertionError, OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                connection.close()
            self.num_answers += 1
            number += 1
        connection.close()


def restarted(port):
    """What `chiasm fleet restart --gateway` says."""
    address = f"http://127.0.0.1:{port}"
    command = ["fleet", "restart", "--gateway", "--json", "--server", address, "--api-key", "operator"]
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        result = CliRunner().invoke(app, command)
        if result.exit_code == 0:
            return json.loads(result.stdout)
        # The call may have reached the process that the last one replaced: it accepts until it hears of that.
        if not isinstance(result.exception, OverloadedError) or time.monotonic() > deadline_s:
            raise result.exception
        time.sleep(0.05)


def serving_pid(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", "/admin/gateway", headers={"Authorization": "Bearer operator"})
    pid = json.loads(connection.getresponse().read())["pid"]
    connection.close()
    return pid


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def until(condition):
    """Wait for what nobody announces."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it never happened"
        time.sleep(0.05)


def test_no_request_fails_while_the_gateway_is_replaced_twice(tmp_path):
    with fleet(tmp_path) as (gateway, port, _):
        pids = [serving_pid(port)]
        assert pids == [gateway.pid]
        with Load(port, ["are you there", LONG_TEXT]) as load:
            for _ in range(2):
                pids.append(restarted(port)["pid"])
                before = load.num_answers
                until(lambda before=before: load.num_answers > before + NUM_CLIENTS)
        assert load.failures == []
        assert len(set(pids)) == 3, "each time it is another process"
        assert gateway.poll() is None, "the one that was started stays, as the keeper"
        until(lambda: not is_alive(pids[1]))
        gateway.terminate()
        assert gateway.wait(PATIENCE_S) == 0
        until(lambda: not is_alive(pids[2]))


def test_a_connection_that_rests_is_served_once_more_and_told_to_go(tmp_path):
    with fleet(tmp_path) as (_, port, _):
        resting = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        assert said(resting, "first").split() == ["first"]
        restarted(port)
        assert resting.sock is not None

        def is_told_to_go():
            assert said(resting, "second").split() == ["second"]
            return resting.sock is None

        until(is_told_to_go)  # the successor serves a moment before its forerunner hears of it
        assert said(resting, "third").split() == ["third"]
        resting.close()


def test_a_successor_that_cannot_start_changes_nothing(tmp_path):
    with fleet(tmp_path) as (gateway, port, file):
        right = file.read_text()
        file.write_text(right.replace("port = 0", "prot = 0"))
        with pytest.raises(EngineStartError):
            restarted(port)
        assert serving_pid(port) == gateway.pid
        file.write_text(right)
        later = restarted(port)["pid"]
        file.write_text(right.replace("port = 0", "prot = 0"))
        with pytest.raises(EngineStartError, match="did not start"):
            restarted(port)
        assert serving_pid(port) == later


def test_servers_end_with_their_keeper(tmp_path):
    with fleet(tmp_path) as (gateway, port, _):
        pid = restarted(port)["pid"]
        until(lambda: b"succession" in (ROOT / f"/proc/{gateway.pid}/cmdline").read_bytes())
        os.kill(gateway.pid, signal.SIGKILL)
        until(lambda: not is_alive(pid))
