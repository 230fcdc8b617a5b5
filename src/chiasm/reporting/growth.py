"""What requests add to a server's memory, measured: some are sent at once, and memory is read all the while."""

import asyncio
import secrets
from collections.abc import Iterable

import msgspec

from chiasm.bench.server import ServerView, fault_of
from chiasm.bench.workload.bodies import BodyMaker, Dialect
from chiasm.bench.workload.classes import RequestClass
from chiasm.observability.memory import WorkerMemory

_PATH = "/v1/chat/completions"
_POLL_S = 0.02
_OK = 200


class MemoryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `GET /debug/memory`."""

    workers: tuple[WorkerMemory, ...]


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """What requests that ran at once added, all processes together.

    Attributes:
        num_requests: Sent at once, and how many of them finished.
        used_bytes_per_request: The most that parts for requests used meanwhile, beyond what they used before, each.
        rss_bytes_per_request: The same of resident pages. 0 where pages are there from earlier requests.
        kept_rss_bytes: Resident pages that stayed when all had ended: what is kept for reuse, and by allocators.
        kept_cache_bytes: What caches gained.
        num_looks: Times that memory was read while they ran; with few, the most may have been missed.
    """

    num_requests: int
    num_finished: int
    used_bytes_per_request: float
    rss_bytes_per_request: float
    kept_rss_bytes: int
    kept_cache_bytes: int
    num_looks: int


async def measure_growth(server: ServerView, dialect: Dialect, kind: RequestClass, num_requests: int) -> Growth:
    """Send requests of a class at once and watch. The server should have nothing else to do. Raises `ChiasmError`."""
    maker = BodyMaker((kind,), dialect, secrets.token_hex(8))  # nothing that the server has cached
    bodies = [maker.make(kind, number) for number in range(num_requests)]
    before = await memory_of(server)
    sending = [asyncio.create_task(server.send("POST", _PATH, body)) for body in bodies]
    looks = []
    try:
        while not all(one.done() for one in sending):
            looks.append(await memory_of(server))
            await asyncio.sleep(_POLL_S)
        answers = [await one for one in sending]
    finally:
        for one in sending:
            one.cancel()
    _check(answers)
    after = await memory_of(server)
    return Growth(
        num_requests=num_requests,
        num_finished=sum(status == _OK for status, _ in answers),
        used_bytes_per_request=_most(used_by_requests(one) - used_by_requests(before) for one in looks) / num_requests,
        rss_bytes_per_request=_most(resident(one) - resident(before) for one in looks) / num_requests,
        kept_rss_bytes=resident(after) - resident(before),
        kept_cache_bytes=_cached(after) - _cached(before),
        num_looks=len(looks),
    )


async def memory_of(server: ServerView) -> tuple[WorkerMemory, ...]:
    """What every process takes now. Raises `ChiasmError`."""
    return (await server.get("/debug/memory", MemoryAnswer)).workers


def used_by_requests(workers: tuple[WorkerMemory, ...]) -> int:
    """Bytes in parts that grow with requests."""
    return sum(one.used_bytes("requests") for one in workers)


def resident(workers: tuple[WorkerMemory, ...]) -> int:
    """Bytes in memory, shared ones once where the system tells."""
    known = [one.process for one in workers if one.process is not None]
    return sum(one.rss_bytes if one.pss_bytes is None else one.pss_bytes for one in known)


def _cached(workers: tuple[WorkerMemory, ...]) -> int:
    return sum(one.used_bytes("cache") for one in workers)


def _most(values: Iterable[int]) -> int:
    return max(values, default=0)


def _check(answers: list[tuple[int, bytes]]) -> None:
    faults = [fault_of(status, body) for status, body in answers if status != _OK]
    if len(faults) == len(answers):
        raise faults[0]
