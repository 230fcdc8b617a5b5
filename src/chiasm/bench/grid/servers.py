"""The servers of a grid: started side by side, or found running."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import msgspec

from chiasm.bench.grid.spec import GridSpec, Topology
from chiasm.bench.grid.usage import cpu_s
from chiasm.bench.probe import probe
from chiasm.bench.target import Target, parse_target
from chiasm.bench.workload.bodies import Dialect
from chiasm.errors import EngineStartError
from chiasm.settings.process import inherited_environment

_STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Server:
    """A running server. `pid` is None when it was there before."""

    topology: Topology
    target: Target
    dialect: Dialect
    pid: int | None = None

    @property
    def name(self) -> str:
        """Of its topology."""
        return self.topology.name

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds of its processes so far; nothing of a server that was there before."""
        return {} if self.pid is None else cpu_s(self.pid, self.topology.processes)


class _Ready(msgspec.Struct):
    address: str


@asynccontextmanager
async def servers(spec: GridSpec, api_key: str | None = None) -> AsyncIterator[list[Server]]:
    """One for each topology, in the file's order; those that were started end with the block.

    Raises:
        EngineStartError: One did not start; what it said is on standard error.
        EngineError: One does not answer.
    """
    async with AsyncExitStack() as stack:
        running = []
        for topology in spec.topologies:
            pid = None
            if topology.serve is None:
                target = parse_target(topology.url or "", api_key)
            else:
                address, pid = await stack.enter_async_context(_started(topology, spec))
                target = parse_target(address)
            dialect = await probe(target, {"chat"}, None)
            running.append(Server(topology, target, dialect, pid))
        yield running


@asynccontextmanager
async def _started(topology: Topology, spec: GridSpec) -> AsyncIterator[tuple[str, int]]:
    """The address and the process of a new server."""
    words = ("serve", *(topology.serve or ()), "--json", "--port", "0", "--log-level", "warning")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "chiasm",
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        env=inherited_environment() | spec.environment,
        start_new_session=True,  # Ctrl+C is for us; we end it
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(spec.start_timeout_s):
            line = await process.stdout.readline()
        yield _address(topology, line), process.pid
    except TimeoutError:
        raise EngineStartError(
            f"The server of '{topology.name}' was not ready after {spec.start_timeout_s:.0f} s",
            hint="Give it longer by the grid's start_timeout_s",
        ) from None
    finally:
        await _end(process)


def _address(topology: Topology, line: bytes) -> str:
    try:
        return msgspec.json.decode(line, type=_Ready).address
    except msgspec.DecodeError:
        raise EngineStartError(
            f"The server of '{topology.name}' did not start",
            hint=f"What it said is above; try `chiasm serve {' '.join(topology.serve or ())}`",
        ) from None


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
