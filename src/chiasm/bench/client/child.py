"""A client process: reads its order, waits for the start, sends, writes its records. Ends when its owner does."""

import asyncio
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import uvloop

from chiasm.bench.client.load import Load
from chiasm.bench.client.messages import Done, Go, Order, Prepared, Progress, Report
from chiasm.bench.client.pacer import Pacer
from chiasm.bench.client.pool import Pool
from chiasm.bench.client.results import records_file, write_records
from chiasm.bench.workload.plan import Plan

_REPORT_INTERVAL_S = 0.25


def main() -> None:
    """Send one part of a plan."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the owner
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    uvloop.run(_run(order))


async def _run(order: Order) -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    folder = Path(order.plan)
    plan = Plan(folder)
    pool = Pool(order.target)
    load = Load(plan.requests[order.part :: order.num_parts], plan, order.target, pool, order.timeout_s)
    _say(Prepared())
    line = await lines.readline()
    if not line:
        return
    zero_ns = msgspec.json.decode(line, type=Go).zero_ns
    sending = asyncio.create_task(_send(order, load, zero_ns))
    orphaned = asyncio.create_task(lines.read())  # ends with the owner
    reporting = asyncio.create_task(_report(load))
    await asyncio.wait([sending, orphaned], return_when=asyncio.FIRST_COMPLETED)
    reporting.cancel()
    if not sending.done():
        sending.cancel()
        return
    cpu_s, cpu_share = sending.result()
    await pool.aclose()
    write_records(records_file(folder, order.part), load.records)
    _say(_progress(load))
    _say(Done(cpu_s, cpu_share))
    orphaned.cancel()


async def _send(order: Order, load: Load, zero_ns: int) -> tuple[float, float]:
    """CPU seconds while requests were under way, and their share of one core."""
    pacer = Pacer()
    try:
        await pacer.until(zero_ns)
        started_s, cpu_s = time.monotonic(), time.process_time()
        if order.concurrency:  # takes all it can get, and so must not come first
            await load.run_closed(zero_ns, order.concurrency)
        else:
            _come_first()
            await load.run_open(zero_ns, pacer.until)
        cpu_s = time.process_time() - cpu_s
        return cpu_s, cpu_s / max(time.monotonic() - started_s, 1e-9)
    finally:
        pacer.close()


def _come_first() -> None:
    """Run before what else this machine does, where that is allowed: requests are due, and answers come, at instants.

    An open loop needs little of a core; one that needs 80 % of it is called invalid.
    """
    with suppress(OSError, AttributeError):  # not allowed, or not known, by this system
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


async def _report(load: Load) -> None:
    while True:
        await asyncio.sleep(_REPORT_INTERVAL_S)
        _say(_progress(load))


def _progress(load: Load) -> Progress:
    return Progress(load.num_sent, load.num_ended, load.num_failed)


def _say(report: Report) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
