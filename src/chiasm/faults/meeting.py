"""The requests of one trial, which are under way together while the target meets its fault."""

import asyncio
import time
from dataclasses import dataclass, field

from chiasm.errors import RequestCancelledError
from chiasm.faults.client import Answer
from chiasm.faults.fault import Fault
from chiasm.faults.questions import Question
from chiasm.faults.rig import Rig, until
from chiasm.observability.receipt import Receipt

MEETING_TIMEOUT_S = 90.0
_RECENT = 64
_JOIN_S = 0.3
"""In this time a second request finds the encode call of the first; the verdict is the same if it does not."""


@dataclass
class Asked:
    """A request beside the tokens that it is to get."""

    name: str
    question: Question
    right: list[str]
    answer: Answer = field(default_factory=Answer)
    receipt: Receipt | None = None


class Meeting:
    """Runs once.

    `text` streams already when the target comes; `picture` comes with it, or streams as well with `is_picture_first`;
    `sharing` comes while the target's encode call is under way.
    """

    def __init__(
        self, rig: Rig, text: Asked, picture: Asked, target: Asked, sharing: Asked | None, *, is_picture_first: bool
    ) -> None:
        self._rig = rig
        self._text = text
        self._picture = picture
        self._target = target
        self._sharing = sharing
        self._is_picture_first = is_picture_first

    @property
    def neighbours(self) -> list[Asked]:
        """Everybody but the target."""
        return [one for one in (self._text, self._picture, self._sharing) if one is not None]

    async def run(self, fault: Fault) -> None:
        """Ask, and wait for every answer and receipt. Raises `TimeoutError` after `MEETING_TIMEOUT_S`."""
        async with asyncio.timeout(MEETING_TIMEOUT_S), asyncio.TaskGroup() as group:
            await self._begin(group, self._text, is_awaited=True)
            await self._begin(group, self._picture, is_awaited=self._is_picture_first)
            with self._rig.watch.over(fault, self._target.question.identities):
                await self._meet(group, fault)

    async def _begin(self, group: asyncio.TaskGroup, asked: Asked, *, is_awaited: bool) -> None:
        began = asyncio.Event()
        group.create_task(self._ask(asked, began))
        if is_awaited:
            await began.wait()

    async def _ask(self, asked: Asked, began: asyncio.Event | None = None) -> None:
        asked.answer = await self._rig.client.ask(asked.question, began)
        asked.receipt = await self._receipt(asked.answer.receipt_id)

    async def _meet(self, group: asyncio.TaskGroup, fault: Fault) -> None:
        known = {one.request_id for one in self._rig.gateway.receipts.latest(_RECENT)}
        started_s = time.perf_counter()
        asking, leaving = asyncio.create_task(self._ask(self._target)), asyncio.create_task(fault.left.wait())
        try:
            await asyncio.wait({asking, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not leaving.done():
                return await asking
            sharing = None
            if self._sharing is not None:
                sharing = group.create_task(self._ask(self._sharing))
                await asyncio.sleep(_JOIN_S)
            asking.cancel()
            self._target.receipt = await self._receipt_of_who_left(known)
            self._target.answer.outcome = self._target.receipt.outcome
            self._target.answer.elapsed_s = time.perf_counter() - started_s
            fault.gone.set()
            if sharing is not None:
                await sharing
        finally:
            asking.cancel()
            leaving.cancel()

    async def _receipt(self, receipt_id: str) -> Receipt | None:
        """The gateway writes it when the client has read the end."""
        receipts = self._rig.gateway.receipts
        if receipt_id:
            await until(lambda: receipts.get(receipt_id) is not None, MEETING_TIMEOUT_S, "there is a receipt")
        return receipts.get(receipt_id)

    async def _receipt_of_who_left(self, known: set[str]) -> Receipt:
        def found() -> list[Receipt]:
            latest = self._rig.gateway.receipts.latest(_RECENT)
            return [one for one in latest if one.request_id not in known and one.outcome == RequestCancelledError.code]

        await until(lambda: bool(found()), MEETING_TIMEOUT_S, "the gateway notices that the client has left")
        return found()[0]
