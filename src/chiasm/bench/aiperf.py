"""Results in the form of AIPerf's export files, so that its tools and scripts can read them.

`profile_export.jsonl` has one line for each measured request, `profile_export_aiperf.json` the statistics. Names and
units are AIPerf's: its `inter_token_latency` is our TPOT, its `inter_chunk_latency` our ITL, and its latencies count
from the send.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from chiasm.bench.client.processes import Measured
from chiasm.bench.metrics.e2el import wire_e2el_s
from chiasm.bench.metrics.tpot import tpot_s
from chiasm.bench.metrics.ttft import wire_ttft_s
from chiasm.bench.record import CANCELLED, Record
from chiasm.bench.summary import CellSummary

RECORDS = "profile_export.jsonl"
STATISTICS = "profile_export_aiperf.json"

_PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
_HTTP_OK = 200
_WORKER = "chiasm-bench"
"""AIPerf does not read records without the names of the processes that made them."""


def write_aiperf(folder: Path, measured: Measured, summary: CellSummary) -> None:
    """Write both files."""
    chosen = [record for record in measured.records if record.phase == "measured"]
    zero_ns = int(measured.started_unix_s * 1e9)
    encoder = msgspec.json.Encoder()
    lines = b"".join(encoder.encode(_line(record, zero_ns)) + b"\n" for record in chosen)
    (folder / RECORDS).write_bytes(lines)
    (folder / STATISTICS).write_bytes(msgspec.json.format(encoder.encode(_statistics(chosen, summary))))


def _line(record: Record, zero_ns: int) -> dict[str, Any]:
    return {
        "metadata": {
            "session_num": record.index,
            "conversation_id": str(record.index),
            "turn_index": 0,
            "request_start_ns": zero_ns + record.sent_ns,
            "request_ack_ns": None if record.head_ns is None else zero_ns + record.head_ns,
            "request_end_ns": zero_ns + record.end_ns,
            "worker_id": _WORKER,
            "record_processor_id": _WORKER,
            "benchmark_phase": "profiling",
            "was_cancelled": record.outcome == CANCELLED,
            "cancellation_time_ns": zero_ns + record.end_ns if record.outcome == CANCELLED else None,
        },
        "metrics": _metrics(record) if record.is_finished else {},
        "error": None if record.is_finished else _error(record),
    }


def _error(record: Record) -> dict[str, Any]:
    code = record.status if record.status not in (0, _HTTP_OK) else None
    return {"code": code, "type": record.outcome, "message": f"The request ended as {record.outcome}"}


def _metrics(record: Record) -> dict[str, Any]:
    values: dict[str, tuple[Any, str]] = {
        "request_latency": (_ms(wire_e2el_s(record)), "ms"),
        "time_to_first_token": (_ms(wire_ttft_s(record)), "ms"),
        "inter_token_latency": (_ms(tpot_s(record)), "ms"),
        "inter_chunk_latency": ([gap / 1e6 for gap in record.gaps_ns] or None, "ms"),
        "input_sequence_length": (record.num_prompt_tokens, "tokens"),
        "output_sequence_length": (record.num_output_tokens or None, "tokens"),
    }
    return {name: {"value": value, "unit": unit} for name, (value, unit) in values.items() if value is not None}


def _statistics(records: Sequence[Record], summary: CellSummary) -> dict[str, Any]:
    finished = [record for record in records if record.is_finished]
    rates = summary.throughput
    found: dict[str, Any] = {
        "request_latency": _spread((_ms(wire_e2el_s(one)) for one in finished), "ms"),
        "time_to_first_token": _spread((_ms(wire_ttft_s(one)) for one in finished), "ms"),
        "inter_token_latency": _spread((_ms(tpot_s(one)) for one in finished), "ms"),
        "inter_chunk_latency": _spread((gap / 1e6 for one in finished for gap in one.gaps_ns), "ms"),
        "input_sequence_length": _spread((one.num_prompt_tokens for one in finished), "tokens"),
        "output_sequence_length": _spread((one.num_output_tokens or None for one in finished), "tokens"),
        "request_throughput": {"unit": "requests/sec", "avg": rates.requests_per_s},
        "output_token_throughput": {"unit": "tokens/sec", "avg": rates.output_tokens_per_s},
        "request_count": {"unit": "requests", "avg": len(finished)},
        "error_request_count": {"unit": "requests", "avg": len(records) - len(finished)},
    }
    return {name: block for name, block in found.items() if block is not None}


def _spread(values: Iterable[float | None], unit: str) -> dict[str, Any] | None:
    sample = np.array([value for value in values if value is not None], dtype=np.float64)
    if not sample.size:
        return None
    percentiles = np.percentile(sample, _PERCENTILES)
    return {
        "unit": unit,
        "avg": float(sample.mean()),
        "min": float(sample.min()),
        "max": float(sample.max()),
        **{f"p{name}": float(value) for name, value in zip(_PERCENTILES, percentiles, strict=True)},
        "std": float(sample.std(ddof=1)) if sample.size > 1 else 0.0,
        "count": int(sample.size),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
