"""Whether a cell measured the server, and not the client."""

from collections.abc import Sequence

import msgspec
import numpy as np

from chiasm.bench.client.processes import Measured
from chiasm.bench.metrics.ttft import ttft_s
from chiasm.bench.record import CLIENT_LIMIT, Record

_MAX_LAG_S = 0.005
_MAX_LAG_SHARE = 0.02
_MAX_CPU_SHARE = 0.8


class ClientHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How the load generator did. `problems` are the reasons for not believing the cell; none is good."""

    num_processes: int
    cpu_share: float
    cpu_ms_per_request: float
    send_lag_p50_ms: float
    send_lag_p99_ms: float
    problems: tuple[str, ...] = ()


def client_health(measured: Measured, *, is_open_loop: bool) -> ClientHealth:
    """Judge a cell's clients by the rules in docs/bench.md."""
    records = measured.records
    lags_s = np.array([record.sent_ns - record.scheduled_ns for record in records]) / 1e9
    p50, p99 = (float(value) for value in np.percentile(lags_s, (50, 99)))
    return ClientHealth(
        num_processes=measured.num_processes,
        cpu_share=measured.cpu_share,
        cpu_ms_per_request=1e3 * measured.cpu_s / len(records),
        send_lag_p50_ms=1e3 * p50,
        send_lag_p99_ms=1e3 * p99,
        problems=tuple(_problems(records, p99, measured.cpu_share)) if is_open_loop else (),
    )


def _problems(records: Sequence[Record], lag_p99_s: float, cpu_share: float) -> list[str]:
    problems = []
    firsts = [value for value in map(ttft_s, records) if value is not None]
    limit_s = max(_MAX_LAG_S, _MAX_LAG_SHARE * float(np.median(firsts)) if firsts else 0.0)
    if lag_p99_s > limit_s:
        late, allowed = f"{1e3 * lag_p99_s:.1f} ms", f"{1e3 * limit_s:.1f} ms"
        problems.append(f"Requests left late: 1 % of them by more than {late}, where {allowed} are allowed")
    if cpu_share > _MAX_CPU_SHARE:
        problems.append(f"A client process used {cpu_share:.0%} of its core, where {_MAX_CPU_SHARE:.0%} are allowed")
    if limited := sum(record.outcome == CLIENT_LIMIT for record in records):
        problems.append(f"{limited} requests found no free socket on this machine")
    return problems
