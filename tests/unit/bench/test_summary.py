"""Cells that may not be believed say so, and nothing that was attempted is left out."""

import io
import json

import pytest
from rich.console import Console

from chiasm.bench.aiperf import write_aiperf
from chiasm.bench.client.processes import Measured
from chiasm.bench.metrics.goodput import Objectives
from chiasm.bench.search import Goodput, Trial
from chiasm.bench.summary import summarize
from chiasm.bench.tables import cell_report, goodput_report, repeat_intervals, repeats_report
from tests.unit.bench.records import record


def _measured(records, cpu_share=0.1):
    return Measured(records=records, started_unix_s=1000.0, num_processes=2, cpu_s=1.0, cpu_share=cpu_share)


def _steady(count=100, **fields):
    return [record(i, at_ms=50 * i, **fields) for i in range(count)]


def _shown(report):
    file = io.StringIO()
    Console(file=file, width=160).print(report)
    return " ".join(file.getvalue().split())


def test_every_ending_is_counted_and_classes_are_kept_apart():
    records = _steady()
    for index, outcome in ((3, "overloaded"), (4, "timed_out"), (5, "cancelled"), (6, "overloaded")):
        records[index] = record(index, at_ms=50 * index, outcome=outcome, end_ms=1, request_class="picture")
    records[7] = record(7, at_ms=350, request_class="picture", num_output_tokens=3)
    found = summarize(_measured(records), 20.0, Objectives(ttft_s=1.0))
    assert found.verdict == "valid"
    assert found.total.num_attempted == 100
    assert found.total.outcomes == {"finished": 96, "overloaded": 2, "timed_out": 1, "cancelled": 1}
    assert found.total.attainment == pytest.approx(0.96)
    assert (found.classes["picture"].num_attempted, found.classes["picture"].num_finished) == (5, 1)
    assert found.classes["picture"].num_wrong_length == 1
    assert found.total.latencies.ttft.count == 96
    text = _shown(cell_report(found))
    assert "2 overloaded, 1 timed_out, 1 cancelled" in text
    assert "1 answers have another length than was asked for" in text


def test_only_measured_requests_are_summed_up():
    records = [record(i, at_ms=50 * i, ttft_ms=900, phase="warmup") for i in range(10)]
    records += [record(i, at_ms=50 * i) for i in range(10, 50)]
    found = summarize(_measured(records), 20.0)
    assert (found.total.num_attempted, found.total.latencies.ttft.max_ms) == (40, pytest.approx(100))


def test_an_overload_is_unstable_and_has_no_mean():
    found = summarize(_measured([record(i, at_ms=50 * i, ttft_ms=100 + 40 * i) for i in range(100)]), 20.0)
    assert (found.verdict, found.total.latencies) == ("unstable", None)
    assert "cannot keep up" in _shown(cell_report(found))


def test_an_overload_in_which_late_requests_time_out_is_unstable():
    records = [record(i, at_ms=50 * i) for i in range(50)]
    records += [record(i, at_ms=50 * i, outcome="timed_out", end_ms=9000) for i in range(50, 100)]
    assert summarize(_measured(records), 20.0).verdict == "unstable"


@pytest.mark.parametrize(
    ("records", "cpu_share", "said"),
    [
        (_steady(), 0.9, "90% of its core"),
        ([record(i, at_ms=50 * i, sent_ms=50 * i + 6, ttft_ms=100) for i in range(100)], 0.1, "left late"),
        ([*_steady(), record(100, at_ms=5000, outcome="client_limit")], 0.1, "no free socket"),
    ],
)
def test_a_client_that_was_the_limit_makes_the_cell_invalid(records, cpu_share, said):
    found = summarize(_measured(records, cpu_share), 20.0)
    assert found.verdict == "invalid"
    assert said in found.client.problems[0]
    assert said in _shown(cell_report(found))


def test_lag_is_judged_by_the_latency_it_adds_to():
    records = [record(i, at_ms=500 * i, sent_ms=500 * i + 6, ttft_ms=400) for i in range(100)]
    assert summarize(_measured(records), 2.0).client.problems == ()


def test_intervals_are_over_runs():
    runs = [summarize(_measured(_steady(ttft_ms=ttft)), 20.0) for ttft in (90, 100, 110)]
    found = repeat_intervals(runs)["TTFT, from the schedule, mean [ms]"]
    assert (found.count, found.value) == (3, pytest.approx(100))
    assert 90 <= found.low < 100 < found.high <= 110
    assert "3 valid of 3 runs" in _shown(repeats_report(runs))
    assert repeat_intervals([]) == {}


def test_aiperf_files_have_its_names_and_units(tmp_path):
    records = [
        record(0, at_ms=0, sent_ms=20, ttft_ms=120, gaps_ms=(10, 20), num_prompt_tokens=7),
        record(1, at_ms=50, outcome="overloaded", status=429, end_ms=1),
        record(2, at_ms=90, outcome="cancelled", end_ms=5),
        record(3, at_ms=99, phase="warmup"),
    ]
    measured = _measured(records)
    write_aiperf(tmp_path, measured, summarize(measured, 20.0))
    lines = [json.loads(line) for line in (tmp_path / "profile_export.jsonl").read_text().splitlines()]
    assert [line["metadata"]["session_num"] for line in lines] == [0, 1, 2]
    assert {"worker_id", "record_processor_id"} <= set(lines[0]["metadata"])  # AIPerf does not read records without
    metrics = lines[0]["metrics"]
    assert metrics["time_to_first_token"] == {"value": pytest.approx(100), "unit": "ms"}
    assert metrics["inter_token_latency"]["value"] == pytest.approx(15)
    assert metrics["inter_chunk_latency"]["value"] == pytest.approx([10, 20])
    assert metrics["input_sequence_length"] == {"value": 7, "unit": "tokens"}
    assert lines[0]["metadata"]["request_start_ns"] == 1_000_020_000_000
    assert (lines[1]["error"]["code"], lines[1]["error"]["type"]) == (429, "overloaded")
    assert lines[2]["metadata"]["was_cancelled"]
    statistics = json.loads((tmp_path / "profile_export_aiperf.json").read_text())
    assert statistics["time_to_first_token"]["count"] == 1
    assert statistics["error_request_count"]["avg"] == 2


def test_the_window_of_a_single_request_is_its_own_time():
    found = summarize(_measured([record(0, ttft_ms=100, gaps_ms=())]), 20.0)
    assert found.throughput.requests_per_s == pytest.approx(10)


def test_the_curve_of_goodput_has_the_classes_and_the_rate_per_device():
    trials = (
        Trial(rate_per_s=4, attainment=0.99, is_stable=True, by_class={"text": 1.0, "pictures": 0.98}),
        Trial(rate_per_s=8, attainment=0.4, is_stable=False, by_class={"text": 0.5, "pictures": 0.2}),
    )
    text = _shown(goodput_report(Goodput(goodput_per_s=7.1, first_bad_per_s=7.5, trials=trials), 2))
    assert "Goodput 7.1 requests/s, 3.55 per device (below 7.5)" in text
    assert "4 99.0% 100.0% 98.0% yes" in text
    assert "8 40.0% 50.0% 20.0% no" in text
