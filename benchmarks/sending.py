"""Sending bodies that a benchmark made itself with the client of `chiasm bench`."""

import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from chiasm.bench.client.processes import Measured, run_clients
from chiasm.bench.target import Target
from chiasm.bench.workload.arrivals import arrival_times_s
from chiasm.bench.workload.plan import BODIES, SCHEDULE, PlannedRequest


def poisson(count: int, rate_per_s: float, seed: str) -> list[float]:
    """Start times from 0, with exponential gaps."""
    return arrival_times_s("poisson", rate_per_s, count, seed)


async def send(
    target: Target,
    bodies: Sequence[bytes],
    times_s: Sequence[float] | None = None,
    *,
    concurrency: int = 0,
    timeout_s: float = 120.0,
) -> Measured:
    """Send each body at its time, or keep `concurrency` of them open. Every one is answered or counted as an error."""
    times_s = times_s or [0.0] * len(bodies)
    with TemporaryDirectory(prefix="chiasm-benchmark-") as name:
        folder = Path(name)
        _write(folder, bodies, times_s)
        last_s = times_s[-1] + (timeout_s * len(bodies) / concurrency if concurrency else 0.0)
        return await run_clients(
            folder, target, num_processes=1, timeout_s=timeout_s, last_s=last_s, concurrency=concurrency
        )


async def capacity_per_s(target: Target, bodies: Sequence[bytes], concurrency: int) -> float:
    """Requests per second in a closed loop over all bodies."""
    records = (await send(target, bodies, concurrency=concurrency)).records
    failed = {record.outcome for record in records if not record.is_finished}
    if failed:
        raise RuntimeError(f"requests failed while capacity was measured: {', '.join(failed)}")
    return len(records) / (max(record.end_ns for record in records) / 1e9)


def shuffled(names: Sequence[str], seed: str) -> list[str]:
    """All of them, in an order of the seed's."""
    return random.Random(seed).sample(list(names), len(names))


def _write(folder: Path, bodies: Sequence[bytes], times_s: Sequence[float]) -> None:
    offset, lines = 0, []
    for index, (body, at_s) in enumerate(zip(bodies, times_s, strict=True)):
        lines.append(
            PlannedRequest(
                index=index,
                request_class="all",
                kind="chat",
                phase="measured",
                at_s=at_s,
                offset=offset,
                num_body_bytes=len(body),
                output_tokens=0,
            )
        )
        offset += len(body)
    (folder / BODIES).write_bytes(b"".join(bodies))
    (folder / SCHEDULE).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
