"""Two gateways over one embedded fleet share a real store, which is killed and comes back: no request notices."""

import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager

import pytest

from chiasm.tenancy.edit import new_key
from tests.architecture.repository import ROOT
from tests.e2e.served import ask, fresh
from tests.redis_server import redis_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PATIENCE_S = 180
LIMITS = "\n[tenants.rare]\nmax_requests_per_minute = 1\n\n[tenants.narrow]\nmax_concurrent_requests = 1\n"


@contextmanager
def process(*command, log):
    """A command of ours, gone at the end; yields it and the first line that it says."""
    with log.open("w") as sink:
        running = subprocess.Popen(
            [sys.executable, "-m", "chiasm", *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=sink, text=True
        )
        try:
            line = running.stdout.readline()
            assert line, log.read_text()
            yield running, json.loads(line)
        finally:
            running.kill()
            running.wait()
            running.stdout.close()


class Gateway:
    """One of them, which can be killed and started again."""

    def __init__(self, words, key, log):
        self.log = log
        self._words, self._key, self._closing = words, key, ExitStack()
        self.start()

    def start(self):
        """Return once it serves."""
        _, said = self._closing.enter_context(process(*self._words, log=self.log))
        self._address = said["address"]

    def kill(self):
        """End it without a word."""
        self._closing.close()

    def call(self, path, body=None, method=None, key=None):
        """Status and body."""
        headers = {"Authorization": f"Bearer {key or self._key}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def ask(self, *parts, key=None):
        """Status, and the answer with its receipt."""
        body = {"messages": ask(*parts), "max_tokens": 4, "temperature": 0, "chiasm": {"receipt": True}}
        return self.call("/v1/chat/completions", body, key=key)

    def level(self, name):
        """A number of its metrics."""
        request = urllib.request.Request(f"{self._address}/metrics", headers={"Authorization": f"Bearer {self._key}"})
        text = urllib.request.urlopen(request, timeout=PATIENCE_S).read().decode()
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"chiasm_{name} "))


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    """A store, two workers of which only the first gateway is told, and two gateways."""
    folder = tmp_path_factory.mktemp("fleet")
    folder.chmod(0o700)
    keys = folder / "keys.toml"
    names = {name: new_key(keys, name, ("infer", "metrics")) for name in ("plain", "rare", "narrow")}
    names["admin"] = new_key(keys, "plain", ("admin",))
    keys.write_text(keys.read_text().replace("[tenants.rare]\n", "").replace("[tenants.narrow]\n", "") + LIMITS)
    with ExitStack() as stack:
        store = stack.enter_context(redis_server(folder))
        register = ("--set", f"routing.directory={folder / 'workers'}")
        for name in ("w0", "w1"):
            worker = ("worker", "--json", "--name", name, *register, "--set", "engine.threads=1")
            stack.enter_context(process(*worker, log=folder / f"{name}.log"))
        serve = ("serve", "--json", "--port", "0", "--topology", "agg", "--workers", "0")
        for setting in (f"store={store.url}", f"keys_file={keys}"):
            serve = (*serve, "--set", f"gateway.{setting}")
        gateways = []
        for name, more in (("a", register), ("b", ())):
            gateways.append(Gateway((*serve, *more), names["plain"], folder / f"{name}.log"))
            stack.callback(gateways[-1].kill)
        until(lambda: all(one.level("gateways") == 2 for one in gateways))
        yield store, gateways, names


@pytest.fixture
def breakable(rig):
    """The same, and whole again afterwards."""
    yield rig
    store, (first, second), _ = rig
    for one in (store, first):
        one.kill()
        one.start()
    until(lambda: first.level("gateways") == second.level("gateways") == 2)


def until(is_so):
    """Wait for something to come true."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s, "it never happened"
        time.sleep(0.05)


def worker_of(answer):
    return answer["chiasm"]["receipt"]["route"]["attempts"][-1]["worker"]


class Load:
    """Threads that ask a gateway until the block ends; what went wrong is in `failures`."""

    def __init__(self, gateway):
        self.failures, self.num_answers = [], 0
        self._gateway, self._stop = gateway, threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(text,)) for text in ("Hello", "Who are you?")]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _ask(self, text):
        while not self._stop.is_set():
            try:
                status, answer = self._gateway.ask(text)
            except OSError as error:
                status, answer = 0, repr(error)
            if status != 200:
                self.failures.append((status, answer))
            self.num_answers += 1


@pytest.mark.parametrize("wanted", ["w0", "w1"])
def test_another_gateway_sends_the_second_question_about_a_picture_to_the_same_worker(rig, wanted):
    _, (first, second), _ = rig
    other = {"w0": "w1", "w1": "w0"}[wanted]
    seen, learned = fresh("red"), second.level("hints_learned")
    with drained(rig, other):
        status, answer = first.ask(seen, "What color is the shape?")
        assert (status, worker_of(answer)) == (200, wanted)
        until(lambda: second.level("hints_learned") > learned)
    status, answer = second.ask(seen, "Is it a circle or a square?")
    assert (status, worker_of(answer)) == (200, wanted)


def test_a_limit_holds_over_both(rig):
    _, gateways, names = rig
    first, second = gateways
    until(lambda: first.ask("Hello", key=names["rare"])[0] == 200)  # where this ran before, that was its minute's
    assert second.ask("Hello", key=names["rare"])[0] == 429


def test_a_deletion_and_a_drain_reach_both(rig):
    _, (first, second), names = rig
    status, report = first.call("/admin/tenants/plain/cache", method="DELETE", key=names["admin"])
    assert (status, report["complete"], len(report["gateways"])) == (200, True, 1)
    with drained(rig, "w0"):
        for gateway in (first, second):
            assert {one["name"]: one["state"] for one in _members(gateway)} == {"w0": "draining", "w1": "ready"}


@contextmanager
def drained(rig, worker):
    """Let no gateway give a worker work inside the block."""
    _, (first, second), names = rig
    path = f"/admin/workers/{worker}/drain"
    status, report = second.call(path, method="POST", key=names["admin"])
    assert (status, [one["error"] for one in report["gateways"]]) == (200, [None])
    try:
        yield
    finally:
        assert second.call(path, method="DELETE", key=names["admin"])[0] == 200
        for gateway in (first, second):
            until(lambda gateway=gateway: all(one["state"] == "ready" for one in _members(gateway)))


def _members(gateway):
    return gateway.call("/debug/state")[1]["fleet"]["members"]


def test_no_request_fails_while_the_store_is_killed_and_comes_back_and_a_gateway_dies(breakable):
    store, (first, second), _ = breakable
    with Load(second) as load:
        store.kill()
        until(lambda: second.call("/health") == (200, {"status": "degraded", "reason": _REASON}))
        assert second.level("gateways") == 2, "the last known number"
        before = load.num_answers
        until(lambda: load.num_answers > before + 4)
        assert first.ask("Hello")[0] == 200
        store.start()
        until(lambda: second.call("/health") == (200, {"status": "ok"}) and second.level("gateways") == 2)
        first.kill()
        until(lambda: second.level("gateways") == 1)
        before = load.num_answers
        until(lambda: load.num_answers > before + 4)
        assert {one["name"] for one in _members(second)} == {"w0", "w1"}, "workers do not go with a gateway"
    assert load.failures == []
    until(lambda: "The shared store does not answer" in second.log.read_text())


_REASON = "the shared store does not answer"
