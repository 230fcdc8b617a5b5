"""Real client processes against real sockets: instants are right, endings are counted, files are there."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from benchmarks.delay_server import Connection, Delays
from chiasm.bench.cell import Bench, LoadSpec, Watcher
from chiasm.bench.client.results import read_records
from chiasm.bench.metrics.goodput import Objectives
from chiasm.bench.metrics.stages import stage_breakdown
from chiasm.bench.metrics.ttft import ttft_s
from chiasm.bench.probe import probe
from chiasm.bench.target import parse_target
from chiasm.bench.workload.bodies import Dialect
from chiasm.bench.workload.classes import RequestClass
from chiasm.errors import AuthenticationError, ContextLengthError, EngineError
from chiasm.settings import GatewaySettings
from tests.fakes import FakeIngest, FakeWorker, fail, say
from tests.integration.gateway_server import Running

PLAIN = Dialect(model="delay", has_exact_length=False, has_receipts=False)


@asynccontextmanager
async def delaying(ttft_s=0.02, tpot_s=0.002, num_tokens=4, stall=(0.0, 0.0)):
    """A server of known delays in this loop; its address."""
    delays = Delays(ttft_s, tpot_s, num_tokens, stall)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(delays), "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def _spec(**fields):
    return LoadSpec(
        **({"classes": (RequestClass(text_tokens=8, output_tokens=4),), "num_processes": 1, "timeout_s": 30} | fields)
    )


async def test_a_cell_leaves_its_schedule_and_everything_that_came_back(tmp_path):
    async with delaying() as address:
        bench = Bench(tmp_path, parse_target(address), PLAIN, _spec(num_requests=40, num_processes=2), Watcher())
        summary = await bench.open_loop("cell", 100.0, "0")
    assert summary.total.outcomes == {"finished": 40}
    assert summary.total.mean_output_tokens == 4
    assert summary.client.num_processes == 2
    names = {path.name for path in (tmp_path / "cell").iterdir()}
    results = {"records.jsonl", "summary.json", "profile_export.jsonl", "profile_export_aiperf.json"}
    assert names == {"spec.json", "schedule.jsonl"} | results
    records = read_records(tmp_path / "cell" / "records.jsonl")
    schedule = [json.loads(line) for line in (tmp_path / "cell" / "schedule.jsonl").read_text().splitlines()]
    assert [record.scheduled_ns for record in records] == [round(line["at_s"] * 1e9) for line in schedule]
    for record in records:
        assert record.scheduled_ns <= record.sent_ns < record.head_ns <= record.first_ns
        assert record.first_ns <= record.last_ns <= record.end_ns
        assert record.first_ns - record.sent_ns >= 20_000_000  # a server cannot be early
        assert record.last_ns - record.first_ns == sum(record.gaps_ns)


async def test_a_stall_of_the_server_is_in_the_tail(tmp_path):
    async with delaying(stall=(0.5, 3.0)) as address:
        bench = Bench(
            tmp_path, parse_target(address), PLAIN, _spec(num_requests=100, num_warmup=0, num_cooldown=0), Watcher()
        )
        await bench.open_loop("cell", 20.0, "0")
    waits_s = sorted(ttft_s(record) for record in read_records(tmp_path / "cell" / "records.jsonl"))
    # 5 s of requests, of which those of 3 s meet the stall: a client that waits for answers would have sent one of them
    assert sum(wait > 0.5 for wait in waits_s) > 30
    assert waits_s[-1] > 2.5


async def test_requests_on_a_gateway_have_receipts_and_exact_lengths(tmp_path):
    classes = (
        RequestClass(name="text", text_tokens=8, output_tokens=8, weight=2),
        RequestClass(name="picture", text_tokens=8, output_tokens=8, images=1, image_width=16, image_height=16),
    )
    async with Running(FakeWorker(say()), FakeIngest(), GatewaySettings(api_keys=("k",))) as running:
        with pytest.raises(AuthenticationError):
            await probe(parse_target(running.address), {"chat"}, None)
        target = parse_target(running.address, "k")
        dialect = await probe(target, {"chat"}, None)
        assert (dialect.has_exact_length, dialect.has_receipts) == (True, True)
        spec = _spec(classes=classes, num_requests=40, limits=Objectives(ttft_s=20.0))
        summary = await Bench(tmp_path, target, dialect, spec, Watcher()).open_loop("cell", 100.0, "0")
    assert summary.total.outcomes == {"finished": 40}
    assert summary.total.attainment == 1
    assert summary.total.num_wrong_length == 0
    assert set(summary.classes) == {"text", "picture"}
    records = read_records(tmp_path / "cell" / "records.jsonl")
    stages = stage_breakdown(record for record in records if record.phase == "measured")
    assert stages.count == 40
    total_ms = sum(stages.stages_ms.values()) + stages.unaccounted_ms + stages.outside_ms
    assert total_ms == pytest.approx(stages.ttft_ms)


async def test_refusals_and_cancellations_are_counted(tmp_path):
    refusing = FakeWorker(fail(ContextLengthError("too long")))
    async with Running(refusing, FakeIngest(), GatewaySettings()) as running:
        dialect = Dialect(model="fake")
        target = parse_target(running.address)
        bench = Bench(tmp_path, target, dialect, _spec(num_requests=10), Watcher())
        refused = await bench.peak("refused", 3)
        assert sum(refused.total.outcomes.values()) == refused.total.num_attempted
        assert refused.total.num_finished == 0
        refusing.script = say(delay_s=5.0)
        leaving = _spec(
            classes=(RequestClass(output_tokens=4, cancel_share=1.0, cancel_after_s=0.05),), num_requests=10
        )
        left = await Bench(tmp_path, target, Dialect(model=refusing.info.model), leaving, Watcher()).open_loop(
            "left", 50.0, "0"
        )
        await running.until_idle()
    assert left.total.outcomes == {"cancelled": 10}


async def test_peak_throughput_and_vectors(tmp_path):
    async with delaying() as address:
        spec = _spec(classes=(RequestClass(kind="embeddings", texts=2),), num_requests=30)
        summary = await Bench(tmp_path, parse_target(address), PLAIN, spec, Watcher()).peak("peak", 4)
    assert (summary.rate_per_s, summary.stability) == (None, None)
    assert summary.total.outcomes == {"finished": 40}  # warm-up and cool-down count in a closed loop
    assert summary.throughput.requests_per_s > 0
    assert summary.total.latencies.ttft is None
    assert summary.total.latencies.e2el.count == 40


async def test_a_trace_is_replayed_at_another_speed(tmp_path):
    table = [(0.5 * i, RequestClass(output_tokens=4)) for i in range(20)]
    async with delaying() as address:
        await Bench(tmp_path, parse_target(address), PLAIN, _spec(), Watcher()).replay("trace", table, 20.0)
    records = read_records(tmp_path / "trace" / "records.jsonl")
    assert [record.scheduled_ns for record in records] == [25_000_000 * i for i in range(20)]


async def test_a_server_that_is_not_there_is_told_at_once():
    with pytest.raises(EngineError, match="No answer"):
        await probe(parse_target("http://127.0.0.1:9"), {"chat"}, None)


async def test_a_server_that_dies_costs_its_requests_and_nothing_else(tmp_path):
    bench = Bench(tmp_path, parse_target("http://127.0.0.1:9"), PLAIN, _spec(num_requests=10), Watcher())
    summary = await bench.open_loop("cell", 100.0, "0")
    assert summary.total.outcomes == {"connection_lost": 10}
