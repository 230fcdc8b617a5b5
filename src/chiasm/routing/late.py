"""Pictures whose embeddings follow their prompt to the worker that computes it."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import cast

from chiasm.errors import ChiasmError, EngineDeadError, HandleExpiredError
from chiasm.observability.receipt import Span
from chiasm.protocol.worker import LateWorker, SupplyRequest
from chiasm.routing.fan_out import FanOut
from chiasm.routing.member import Member
from chiasm.routing.patience import Patience
from chiasm.routing.pictures import Pictures
from chiasm.routing.plan import EncodeGroup

_SUPPLY_TIMEOUT_S = 10.0


class Late:
    """Encodes for one call and hands over what comes. Everything that goes wrong ends the call's wait.

    Attributes:
        identities: Of the pictures.
        has_failed: An encoder failed: the call was ended because of that, and its worker is not to blame.
    """

    def __init__(self, fan_out: FanOut, pictures: Pictures, groups: Sequence[EncodeGroup]) -> None:
        self._fan_out = fan_out
        self._pictures = pictures
        self._groups = groups
        self._task: asyncio.Task[None] | None = None
        self._supplying: asyncio.Future[None] | None = None
        self._is_ended = False
        self._has_call_ended = False
        self.identities = frozenset(identity for group in groups for identity in group.identities)
        self.has_failed = False

    def begin(self, member: Member, call_id: str, patience: Patience, limit_s: float) -> None:
        """Ask the encoders. Once all has come, `member` has `limit_s` for its first token."""
        self._task = asyncio.create_task(self._run(member, call_id, patience, limit_s))
        self._task.add_done_callback(_heard)

    @property
    def spans(self) -> list[Span]:
        """What the encoders' work came to, on the router's clock."""
        return self._fan_out.spans

    async def outcome(self) -> None:
        """The call has failed: wait for the encoders. Raises where what failed leaves the ladder no further step."""
        self._has_call_ended = True
        if self._supplying is not None:
            self._supplying.cancel()
        if self._task is not None and not self._is_ended:
            await self._task

    def end(self) -> None:
        """Nobody waits for what has not come."""
        self._is_ended = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self, member: Member, call_id: str, patience: Patience, limit_s: float) -> None:
        is_open = True

        async def landed(pictures: Mapping[str, int], *, is_good: bool) -> None:
            nonlocal is_open
            if not is_good:
                self.has_failed = self.has_failed or is_open
            is_open = is_open and is_good
            try:
                if is_open:
                    await self._supply(member, call_id, pictures)
                else:
                    patience.end()
            except ChiasmError as error:
                is_open = False
                patience.end(_as_lost(member, error))

        await self._fan_out.run(self._groups, landed)
        if is_open:
            patience.restart(limit_s)

    async def _supply(self, member: Member, call_id: str, pictures: Mapping[str, int]) -> None:
        if self._has_call_ended:
            return
        handles = {
            position: handle
            for identity in pictures
            if (handle := self._pictures.handle(identity)) is not None
            for position in self._pictures.positions[identity]
        }
        request = SupplyRequest(request_id=call_id, handles=handles, timeout_s=_SUPPLY_TIMEOUT_S)
        self._supplying = asyncio.ensure_future(cast("LateWorker", member.worker).supply(request))
        try:
            await asyncio.wait([self._supplying])
        finally:
            self._supplying.cancel()  # harmless when it is over
        if not self._supplying.cancelled():
            self._supplying.result()


def _as_lost(member: Member, error: ChiasmError) -> ChiasmError:
    """What a worker that is up does not take is as good as lost on the way, and is made again."""
    if isinstance(error, EngineDeadError):
        return error
    return HandleExpiredError(f"Worker '{member.name}' did not take an embedding: {error.code}")


def _heard(task: "asyncio.Task[None]") -> None:
    if not task.cancelled():
        task.exception()  # the call that it ended is followed by a look at it, unless nobody waits any more
