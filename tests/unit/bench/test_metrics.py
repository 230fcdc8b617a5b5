"""Each metric is its formula, worked out by hand."""

import pytest

from chiasm.bench.metrics.e2el import e2el_s, wire_e2el_s
from chiasm.bench.metrics.goodput import Objectives, attainment, is_good
from chiasm.bench.metrics.itl import itl_s
from chiasm.bench.metrics.queue_time import queue_time_s
from chiasm.bench.metrics.stages import stage_breakdown
from chiasm.bench.metrics.throughput import throughput, window_ns
from chiasm.bench.metrics.tpot import tpot_s
from chiasm.bench.metrics.ttft import ttft_s, wire_ttft_s
from chiasm.bench.record import StageTimes
from tests.unit.bench.records import MS, record


def test_latencies_count_from_the_schedule_and_from_the_send():
    late = record(at_ms=1000, sent_ms=1300, ttft_ms=400, gaps_ms=(10, 30, 20), end_ms=470)
    assert (ttft_s(late), wire_ttft_s(late)) == (pytest.approx(0.4), pytest.approx(0.1))
    assert (e2el_s(late), wire_e2el_s(late)) == (pytest.approx(0.47), pytest.approx(0.17))
    assert itl_s([late]) == pytest.approx([0.01, 0.03, 0.02])


def test_time_per_token_is_the_servers_count_not_the_chunks():
    assert tpot_s(record(gaps_ms=(10, 30, 20))) == pytest.approx(0.02)
    assert tpot_s(record(gaps_ms=(10, 30, 20), num_output_tokens=7)) == pytest.approx(0.01)
    assert tpot_s(record(gaps_ms=())) is None


@pytest.mark.parametrize("outcome", ["timed_out", "cancelled", "overloaded", "connection_lost"])
def test_what_did_not_finish_has_no_latency_and_misses_every_objective(outcome):
    lost = record(outcome=outcome)
    assert (ttft_s(lost), wire_ttft_s(lost), tpot_s(lost), e2el_s(lost), wire_e2el_s(lost)) == (None,) * 5
    assert not is_good(lost, Objectives())
    assert attainment([record(), lost], Objectives()) == 0.5


def test_goodput_needs_both_limits():
    limits = Objectives(ttft_s=0.1, tpot_s=0.01)
    assert is_good(record(ttft_ms=100, gaps_ms=(10,) * 5), limits)
    assert not is_good(record(ttft_ms=101, gaps_ms=(1,) * 5), limits)
    assert not is_good(record(ttft_ms=1, gaps_ms=(11,) * 5), limits)
    assert is_good(record(ttft_ms=100, gaps_ms=()), limits)
    assert attainment([], limits) == 0.0


def test_an_answer_without_tokens_is_held_to_the_first_limit():
    vector = record(kind="embeddings", ttft_ms=50, gaps_ms=(), first_ns=None, last_ns=None)
    assert is_good(vector, Objectives(ttft_s=0.06))
    assert not is_good(vector, Objectives(ttft_s=0.04))


def test_throughput_counts_what_ended_inside_the_window():
    records = [record(i, at_ms=100 * i, ttft_ms=250, gaps_ms=(), num_output_tokens=8) for i in range(11)]
    records.append(record(11, at_ms=500, outcome="overloaded", end_ms=10))
    found = throughput(records, window_ns(records))
    assert found.window_s == pytest.approx(1.0)
    assert found.requests_per_s == pytest.approx(8.0)  # those that came at 0 to 700 ms
    assert found.output_tokens_per_s == pytest.approx(64.0)
    assert found.body_mb_per_s == pytest.approx(0.008)


def test_the_window_is_that_of_measured_requests():
    records = [
        record(0, phase="warmup"),
        record(1, at_ms=50),
        record(2, at_ms=90),
        record(3, at_ms=200, phase="cooldown"),
    ]
    assert window_ns(records) == (50 * MS, 90 * MS)


def test_stages_and_what_is_outside_add_up_to_the_clients_time():
    first = StageTimes(0.09, {"queue": 0.02, "encode_queue": 0.01, "prefill": 0.05}, 0.01)
    second = StageTimes(0.08, {"prefill": 0.08}, 0.0)
    records = [record(ttft_ms=100, receipt=first), record(ttft_ms=100, receipt=second), record(ttft_ms=900)]
    found = stage_breakdown(records)
    assert found.count == 2
    assert found.stages_ms == pytest.approx({"queue": 10, "encode_queue": 5, "prefill": 65})
    assert (found.unaccounted_ms, found.outside_ms) == (pytest.approx(5), pytest.approx(15))
    assert sum(found.stages_ms.values()) + found.unaccounted_ms + found.outside_ms == pytest.approx(found.ttft_ms)
    assert found.unaccounted_share == pytest.approx((0.01 / 0.09) / 2)
    assert queue_time_s(records[0]) == pytest.approx(0.03)
    assert queue_time_s(records[2]) is None
    assert stage_breakdown(records[2:]) is None
