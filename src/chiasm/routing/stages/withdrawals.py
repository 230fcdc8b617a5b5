"""Keys and values that were computed and will not be taken: their worker is told, so that they make room."""

import asyncio

from chiasm.errors import ChiasmError
from chiasm.protocol.deletion import Deletion, Forgetful
from chiasm.protocol.kv import KvHandle
from chiasm.routing.member import Member

_MAX_UNDER_WAY = 64
_TIMEOUT_S = 5.0


class Withdrawals:
    """Calls beside everything else. What a call does not reach, or there are too many for, expires by itself."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, member: Member, kv: KvHandle) -> None:
        """Have a worker stop offering a prompt's keys and values. Harmless when they have been taken."""
        if isinstance(member.worker, Forgetful) and len(self._tasks) < _MAX_UNDER_WAY:
            task = asyncio.create_task(_withdraw(member.worker, kv.key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Cancel what is under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _withdraw(worker: Forgetful, key: str) -> None:
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await worker.forget(Deletion(offer=key), _TIMEOUT_S)
    except (ChiasmError, TimeoutError):
        return
