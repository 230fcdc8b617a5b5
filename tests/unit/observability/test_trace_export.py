"""Traces are sent beside the requests: bounded, and a collector that is dead or slow costs them nothing."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import unused_port

from chiasm.errors import InvalidSettingError
from chiasm.observability import trace_export
from chiasm.observability.trace_export import TraceExporter
from tests.unit.observability.test_trace import receipt


class Collector:
    """Takes traces on loopback, or answers with a status."""

    def __init__(self, status=200, delay_s=0.0):
        self.status, self.delay_s, self.bodies = status, delay_s, []

    async def take(self, request):
        body = await request.json()
        await asyncio.sleep(self.delay_s)
        self.bodies.append(body)
        return web.Response(status=self.status, text="{}")

    @property
    def num_roots(self):
        spans = [span for body in self.bodies for span in body["resourceSpans"][0]["scopeSpans"][0]["spans"]]
        return sum(span["kind"] == 2 for span in spans)


@asynccontextmanager
async def running(collector):
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/traces", collector.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def exporting(address):
    exporter = TraceExporter(address, 1.0, "1", interval_s=0.01)
    counts = {"sent": 0, "dropped": 0}

    def count(what, number):
        counts[what] += number

    exporter.count = count
    task = asyncio.create_task(exporter.run())
    try:
        yield exporter, counts
    finally:
        task.cancel()
        await asyncio.wait([task])


def record(exporter, count):
    for _ in range(count):
        exporter.record("chat", receipt(), exporter.begin(b""))


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for knows nothing of tests
            await asyncio.sleep(0.005)


async def test_all_arrive_in_batches():
    collector = Collector()
    async with running(collector) as address, exporting(address) as (exporter, counts):
        record(exporter, 600)
        await until(lambda: counts["sent"] == 600)
    assert collector.num_roots == 600
    assert len(collector.bodies) == 3
    assert counts["dropped"] == 0


async def test_what_is_left_at_the_end_is_sent():
    collector = Collector()
    async with running(collector) as address:
        async with exporting(address) as (exporter, counts):
            exporter._interval_s = 60
            await asyncio.sleep(0)
            record(exporter, 3)
        assert (collector.num_roots, counts["sent"]) == (3, 3)


async def test_a_request_that_its_caller_does_not_trace_is_not_sent():
    async with exporting(f"http://127.0.0.1:{unused_port()}") as (exporter, counts):
        header = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
        exporter.record("chat", receipt(), exporter.begin(header))
        assert not exporter._waiting
        assert counts == {"sent": 0, "dropped": 0}


@pytest.mark.parametrize("status", [400, 503])
async def test_a_collector_that_refuses_gets_a_pause_and_traces_are_dropped(status, caplog):
    collector = Collector(status)
    async with running(collector) as address, exporting(address) as (exporter, counts):
        record(exporter, 5)
        await until(lambda: counts["dropped"] == 5)
        assert exporter._pause_s >= 1.0
    assert "takes no traces" in caplog.text


async def test_a_collector_whose_answer_does_not_end_is_not_listened_to():
    class Endless(Collector):
        async def take(self, request):
            answer = web.StreamResponse()
            await answer.prepare(request)
            while True:
                await answer.write(b"x" * 65_536)

    async with running(Endless()) as address, exporting(address) as (exporter, counts):
        record(exporter, 1)
        await until(lambda: sum(counts.values()))
        assert counts == {"sent": 1, "dropped": 0}


async def test_a_dead_collector_bounds_the_queue_and_recording_stays_cheap():
    async with exporting(f"http://127.0.0.1:{unused_port()}") as (exporter, counts):
        record(exporter, 1)
        await until(lambda: counts["dropped"] == 1)  # from now on there is a pause
        one, context = receipt(), exporter.begin(b"")
        start_s = time.process_time()
        for _ in range(20_000):
            exporter.record("chat", one, context)
        assert (time.process_time() - start_s) / 20_000 < 50e-6
        assert len(exporter._waiting) == trace_export._MAX_WAITING
        assert counts["dropped"] == 20_001 - trace_export._MAX_WAITING


async def test_a_slow_collector_does_not_hold_up_the_end(monkeypatch):
    monkeypatch.setattr(trace_export, "_LAST_TIMEOUT_S", 0.2)
    async with running(Collector(delay_s=3.0)) as address:
        async with exporting(address) as (exporter, _):
            record(exporter, 5)
            start_s = time.monotonic()
        assert time.monotonic() - start_s < 2.0


async def test_what_is_under_way_at_the_end_is_sent_or_counted(monkeypatch):
    monkeypatch.setattr(trace_export, "_LAST_TIMEOUT_S", 0.2)
    async with running(Collector(delay_s=3.0)) as address, exporting(address) as (exporter, counts):
        record(exporter, 5)
        await until(lambda: not exporter._waiting)
    assert counts == {"sent": 0, "dropped": 5}


@pytest.mark.parametrize("endpoint", ["collector:4318", "ftp://host", "http://", "http://[bad", "http://h?x=1"])
def test_addresses_that_are_none_are_refused(endpoint):
    with pytest.raises(InvalidSettingError):
        TraceExporter(endpoint, 1.0, "1")
