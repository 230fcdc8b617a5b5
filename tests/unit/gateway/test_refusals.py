"""Requests that are not let in: answered from their heads, counted, summed up, and answered later to who asks on."""

import asyncio
import logging
from collections import Counter

import pytest

from chiasm.errors import OverloadedError, RateLimitedError
from chiasm.gateway import create_app, refusals
from chiasm.gateway.refusals import _MAX_WAITING_OF_TENANT, Refusals
from chiasm.observability.metrics import GatewayMetrics
from chiasm.settings import GatewaySettings
from chiasm.tenancy.keys import tenant_of
from chiasm.tenancy.limits import Limits
from tests.asgi import call
from tests.conditions import until
from tests.fakes import FakeIngest, FakeWorker

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "one two"}]}
PROMPT = 100  # answers to a tenant that are given at once, when it has had none for ten seconds


class Server:
    """A gateway whose only tenant has so many requests a minute."""

    def __init__(self, per_minute, **settings):
        self.app = create_app(FakeWorker(), FakeIngest(), GatewaySettings(**settings))
        self.gateway = self.app.state.gateway
        self.gateway.tenants.meter("anonymous").limit(Limits(max_requests_per_minute=per_minute), 0.0)

    async def chat(self, pieces=None):
        return await call(self.app, CHAT, BODY if pieces is None else None, pieces=pieces, method="POST")


async def test_a_refusal_reads_no_body_and_leaves_nothing_but_counts():
    server = Server(1)
    served = await server.chat()
    never_sent = [None]
    refused = await asyncio.wait_for(server.chat(never_sent), 5)
    assert (served.status, refused.status, refused.error["code"]) == (200, 429, "rate_limited")
    assert never_sent == [None], "nobody asked for the body"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.headers["x-request-id"].startswith("chatcmpl-")
    assert "x-chiasm-receipt-id" not in refused.headers
    assert server.gateway.metrics.outcomes() == {"finished": 1, "rate_limited": 1}
    assert server.gateway.metrics.totals()["requests_received"] == 2
    assert [one.request_id for one in server.gateway.receipts.latest(10)] == [served.headers["x-request-id"]]


async def test_a_fault_before_a_request_is_let_in_is_an_answer_and_counts(monkeypatch, caplog):
    server = Server(10)

    def broken(*_):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(server.gateway, "open", broken)
    failed = await server.chat()
    assert (failed.status, failed.error["code"]) == (500, "internal_error")
    assert "a fault of ours" not in failed.error["message"]
    assert server.gateway.metrics.outcomes() == {"internal_error": 1}
    assert failed.headers["x-request-id"] in caplog.text


async def test_a_flood_does_not_push_out_what_others_left():
    server = Server(1, max_receipts=2)
    served = await server.chat()
    for _ in range(5):
        assert (await server.chat()).status == 429
    assert server.gateway.receipts.get(served.headers["x-request-id"]) is not None


async def test_refusals_of_a_full_and_of_a_leaving_server_are_counted_alike():
    server = Server(1000)
    server.gateway.drain()
    assert (await server.chat()).error["code"] == "shutting_down"
    assert server.gateway.metrics.outcomes() == {"shutting_down": 1}
    assert len(server.gateway.receipts) == 0


class Door:
    """Refusals of a gateway in a time of its own; those that wait do so until `open`."""

    def __init__(self, monkeypatch, delay_s=1.0):
        self.now_s = 0.0
        self.slept_s = []
        self.is_open = asyncio.Event()
        self.statuses = Counter()
        metrics = GatewayMetrics(dict, dict, dict)
        self.refusals = Refusals(metrics, delay_s, title_of=str.upper, clock=lambda: self.now_s)
        monkeypatch.setattr(refusals, "_sleep", self._sleep)

    async def _sleep(self, seconds, _ends):
        self.slept_s.append(seconds)
        await self.is_open.wait()

    async def answer(self, tenant="loud", error=None):
        error = error or RateLimitedError("no", retry_after_s=3)
        await self.refusals.answer("chat", tenant, error, "chatcmpl-1", self._send)

    async def _send(self, message):
        if message["type"] == "http.response.start":
            self.statuses[message["status"]] += 1

    async def ask(self, count, **options):
        """So many at once; returns their tasks after each has been answered or waits."""
        tasks = [asyncio.create_task(self.answer(**options)) for _ in range(count)]
        before = len(self.slept_s)
        await until(lambda: sum(task.done() for task in tasks) + len(self.slept_s) - before >= count)
        return tasks


async def test_who_asks_on_is_answered_later(monkeypatch):
    door = Door(monkeypatch)
    await door.ask(PROMPT)
    assert door.slept_s == []
    waiting = await door.ask(5)
    assert (door.slept_s, door.refusals.num_waiting, door.statuses[429]) == ([1.0] * 5, 5, PROMPT)
    await door.ask(1, tenant="other")
    assert door.refusals.num_waiting == 5, "another tenant's answer is given at once"
    await door.ask(1, error=OverloadedError("full"))
    assert door.refusals.num_waiting == 5, "and where the server is full, which is not the tenant's doing alone"
    door.is_open.set()
    await asyncio.gather(*waiting)
    assert (door.refusals.num_waiting, door.statuses[429]) == (0, PROMPT + 7)
    door.now_s = 1.0
    await door.ask(10)
    assert len(door.slept_s) == 5, "ten a second are answered at once"


async def test_no_answer_waits_longer_than_it_says_or_is_set(monkeypatch):
    door = Door(monkeypatch, delay_s=10.0)
    door.is_open.set()
    await asyncio.gather(*await door.ask(PROMPT + 1))
    assert door.slept_s == [3]
    promptly = Door(monkeypatch, delay_s=0.0)
    await promptly.ask(2 * PROMPT)
    assert promptly.slept_s == []


async def test_what_waits_is_bounded(monkeypatch):
    door = Door(monkeypatch)
    await door.ask(PROMPT)
    waiting = await door.ask(_MAX_WAITING_OF_TENANT + 20)
    assert door.refusals.num_waiting == _MAX_WAITING_OF_TENANT
    assert door.statuses[429] == PROMPT + 20
    for task in waiting:  # their clients leave, or the server goes down
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert door.refusals.num_waiting == 0


async def test_a_server_that_ends_gives_the_answers_that_wait():
    server = Server(1, refusal_delay_s=10.0)
    server.gateway.refusals._clock = lambda: 0.0  # no further answers are given at once, however long this takes
    assert (await server.chat()).status == 200
    for _ in range(PROMPT):
        await server.chat()
    waiting = [asyncio.create_task(server.chat()) for _ in range(3)]
    await until(lambda: server.gateway.refusals.num_waiting == 3)
    server.gateway.drain()
    server.gateway.abort()
    answers = await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert [one.status for one in answers] == [429] * 3
    assert (await asyncio.wait_for(server.chat(), 5)).status == 429


async def test_a_delay_ends_by_itself():
    ends = set()
    await asyncio.wait_for(refusals._sleep(0.01, ends), 5)
    assert not ends


async def test_lines_are_sums(monkeypatch, caplog):
    monkeypatch.setattr(refusals, "_LINE_INTERVAL_S", 0.02)
    monkeypatch.setattr(logging.getLogger("chiasm"), "propagate", True)
    refusing = Refusals(GatewayMetrics(dict, dict, dict), 0.0, title_of=str.upper)

    async def send(_message):
        return

    def lines():
        return [record.getMessage() for record in caplog.records]

    with caplog.at_level("INFO", logger="chiasm"):
        for _ in range(50):
            await refusing.answer("chat", "loud", RateLimitedError("no"), "id", send)
        assert lines() == ["refused tenant=LOUD rate_limited=1"]
        await until(lambda: len(lines()) == 2)
        assert lines()[1] == "refused tenant=LOUD rate_limited=49"
        await until(lambda: not refusing._tallies["loud"].has_line_coming)
        await refusing.answer("chat", "loud", OverloadedError("full"), "id", send)
    assert lines()[2:] == ["refused tenant=LOUD overloaded=1"]
    assert caplog.records[-1].chiasm_fields == {"tenant": "LOUD", "refused": {"overloaded": 1}}


async def test_a_server_that_ends_writes_what_was_not_written(monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("chiasm"), "propagate", True)
    door = Door(monkeypatch)
    with caplog.at_level("INFO", logger="chiasm"):
        await door.ask(5)
        door.refusals.hurry()
        door.refusals.hurry()
    assert [one.getMessage() for one in caplog.records] == [
        "refused tenant=LOUD rate_limited=1",
        "refused tenant=LOUD rate_limited=4",
    ]


@pytest.mark.parametrize(("tenant", "title"), [(tenant_of("b"), "api_keys[1]"), ("acme", "acme")])
async def test_the_log_has_no_hash_of_a_key(tenant, title):
    app = create_app(FakeWorker(), FakeIngest(), GatewaySettings(api_keys=("a", "b")))
    assert app.state.gateway.tenants.title(tenant) == title
