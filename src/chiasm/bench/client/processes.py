"""The client processes of one cell: started, set off together, watched, and their records gathered."""

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from chiasm.bench.client.messages import Done, Go, Order, Prepared, Progress, Report
from chiasm.bench.client.results import gathered
from chiasm.bench.record import Record
from chiasm.bench.target import Target
from chiasm.errors import EngineError

_START_TIMEOUT_S = 120.0
_LEAD_NS = 200_000_000
_MAX_LINE_BYTES = 2**16
_GRACE_S = 60.0


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Records in order of index, and what the clients themselves needed."""

    records: list[Record]
    started_unix_s: float
    num_processes: int
    cpu_s: float
    cpu_share: float


async def run_clients(
    plan: Path,
    target: Target,
    *,
    num_processes: int,
    timeout_s: float,
    last_s: float,
    concurrency: int = 0,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Measured:
    """Send a plan and return when every request has ended; its last one is due after `last_s`.

    In a closed loop the processes share `concurrency`, and `last_s` bounds the whole of it.

    Raises:
        EngineError: A client process failed; the others are ended.
    """
    clients: list[_Client] = []
    try:
        for part in range(num_processes):
            share = concurrency * (part + 1) // num_processes - concurrency * part // num_processes
            order = Order(
                plan=str(plan),
                part=part,
                num_parts=num_processes,
                target=target,
                timeout_s=timeout_s,
                concurrency=share,
            )
            clients.append(await _Client.start(order))
        watch = _Watch(num_processes, on_progress)
        async with asyncio.timeout(_START_TIMEOUT_S):
            await asyncio.gather(*(one.until_prepared() for one in clients))
        started_unix_s = time.time() + _LEAD_NS / 1e9
        zero_ns = time.monotonic_ns() + _LEAD_NS
        async with asyncio.timeout(last_s + timeout_s + _GRACE_S):
            ends = await asyncio.gather(*(one.run(zero_ns, watch.part(part)) for part, one in enumerate(clients)))
    except TimeoutError:
        raise EngineError("A client process did not end in time", hint="Is this machine overloaded?") from None
    finally:
        await asyncio.gather(*(one.stop() for one in clients))
    return Measured(
        records=gathered(plan, num_processes),
        started_unix_s=started_unix_s,
        num_processes=num_processes,
        cpu_s=sum(end.cpu_s for end in ends),
        cpu_share=max(end.cpu_share for end in ends),
    )


class _Watch:
    """Adds the progress of the processes up."""

    def __init__(self, num_processes: int, on_progress: Callable[[Progress], None]) -> None:
        self._parts = [Progress(0, 0, 0)] * num_processes
        self._on_progress = on_progress

    def part(self, number: int) -> Callable[[Progress], None]:
        def take(progress: Progress) -> None:
            self._parts[number] = progress
            self._on_progress(
                Progress(
                    sum(one.num_sent for one in self._parts),
                    sum(one.num_ended for one in self._parts),
                    sum(one.num_failed for one in self._parts),
                )
            )

        return take


class _Client:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout

    @classmethod
    async def start(cls, order: Order) -> "_Client":
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "chiasm.bench.client.child", stdin=pipe, stdout=pipe, limit=_MAX_LINE_BYTES
        )
        client = cls(process)
        client._tell(order)
        return client

    async def until_prepared(self) -> None:
        assert isinstance(await self._hear(), Prepared)

    async def run(self, zero_ns: int, on_progress: Callable[[Progress], None]) -> Done:
        self._tell(Go(zero_ns))
        while True:
            report = await self._hear()
            if isinstance(report, Done):
                return report
            assert isinstance(report, Progress)
            on_progress(report)

    async def stop(self) -> None:
        """End the process; one that is through has ended already."""
        self._stdin.close()
        try:
            async with asyncio.timeout(5):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _hear(self) -> Report:
        line = await self._stdout.readline()
        if not line:
            raise EngineError("A client process ended without a result", hint="What it said is above")
        return msgspec.json.decode(line, type=Report)

    def _tell(self, message: Order | Go) -> None:
        self._stdin.write(msgspec.json.encode(message) + b"\n")
