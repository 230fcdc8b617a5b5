"""The open loop keeps to its schedule, whatever the server does: in virtual time."""

import asyncio

import msgspec

from chiasm.bench.client.load import Load
from chiasm.bench.metrics.ttft import ttft_s, wire_ttft_s
from chiasm.bench.statistics.distribution import distribution
from chiasm.bench.target import parse_target
from chiasm.bench.workload.plan import PlannedRequest

NS = 1_000_000_000
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n'
TARGET = parse_target("http://127.0.0.1:1")


class Bodies:
    def head(self, request, host, prefix, headers):
        return b""

    def body(self, request):
        return memoryview(b"")


class Time:
    """A clock that only moves when somebody waits for it."""

    def __init__(self):
        self.now_ns = 0
        self.oversleeps_ns = 0

    def __call__(self):
        return self.now_ns

    async def until(self, at_ns):
        self.now_ns = max(self.now_ns, at_ns) + self.oversleeps_ns
        self.oversleeps_ns = 0
        await asyncio.sleep(0)


class StalledServer:
    """Answers after 100 ms, but nothing that comes between `begin_s` and `end_s` before `end_s` + 100 ms."""

    def __init__(self, begin_s=0.0, end_s=0.0):
        self.begin_s, self.end_s = begin_s, end_s
        self.arrivals_s = []

    def send(self, head, body, answer, zero_ns, on_connection):
        at_s = answer.record.sent_ns / NS
        self.arrivals_s.append(at_s)
        done_ns = round(((self.end_s if self.begin_s <= at_s < self.end_s else at_s) + 0.1) * NS)
        answer.head(200, done_ns)
        answer.body(TOKEN, done_ns)
        answer.complete(done_ns)


def _requests(count, rate_per_s):
    return [
        PlannedRequest(
            index=i,
            request_class="all",
            kind="chat",
            phase="measured",
            at_s=i / rate_per_s,
            offset=0,
            num_body_bytes=0,
            output_tokens=1,
        )
        for i in range(count)
    ]


async def _run(server, time, count=200, rate_per_s=20):
    load = Load(_requests(count, rate_per_s), Bodies(), TARGET, server, 60, time)
    await load.run_open(0, time.until)
    return load.records


async def test_requests_leave_on_time_while_the_server_stalls():
    server = StalledServer(2.0, 5.0)
    records = await _run(server, Time())
    assert server.arrivals_s == [i / 20 for i in range(200)]
    spread = distribution(map(ttft_s, records))
    # 60 of 200 requests meet the stall, and wait between 3 s and nothing for its end
    assert spread.count == 200
    assert abs(spread.max_ms - 3100) < 1
    assert abs(spread.p50_ms - 100) < 1
    assert abs(spread.mean_ms - (100 + sum(3000 - 50 * i for i in range(60)) / 200)) < 1
    assert abs(spread.p90_ms - 2100) < 60


async def test_a_late_client_cannot_hide_what_users_waited():
    time = Time()
    time.oversleeps_ns = 2 * NS
    records = await _run(StalledServer(), time, count=10)
    assert [round(record.sent_ns / NS, 3) for record in records] == [2.0] * 10
    assert [round(wire_ttft_s(record), 3) for record in records] == [0.1] * 10
    assert [round(ttft_s(record), 3) for record in records] == [round(2.1 - i / 20, 3) for i in range(10)]


async def test_a_closed_loop_keeps_as_many_open_as_it_was_told():
    class Held:
        def __init__(self):
            self.open, self.most = [], 0

        def send(self, head, body, answer, zero_ns, on_connection):
            self.open.append(answer)
            self.most = max(self.most, len(self.open))
            asyncio.get_running_loop().call_soon(self.finish)

        def finish(self):
            answer = self.open.pop(0)
            answer.head(200, 1)
            answer.body(TOKEN, 1)
            answer.complete(1)

    held = Held()
    load = Load(_requests(30, 1), Bodies(), TARGET, held, 60)
    await load.run_closed(0, 4)
    assert held.most == 4
    assert (load.num_sent, load.num_ended, load.num_failed) == (30, 30, 0)


async def test_requests_that_get_no_answer_end_by_themselves():
    class Silent:
        def send(self, *_):
            """Take it and say nothing."""

    silent = _requests(3, 1000)
    silent[1] = msgspec.structs.replace(silent[1], cancel_after_s=0.001)
    load = Load(silent, Bodies(), TARGET, Silent(), 0.05)
    await load.run_closed(0, 3)
    assert sorted(record.outcome for record in load.records) == ["cancelled", "timed_out", "timed_out"]
    assert (load.num_ended, load.num_failed) == (3, 3)
