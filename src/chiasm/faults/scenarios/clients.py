"""Clients that leave, at each stage: what was under way for them ends, and nobody else notices."""

from chiasm.faults.fault import Fault
from chiasm.faults.scenarios.base import Scenario
from chiasm.protocol.generation import GenerateEvent, GenerateRequest, TokenEvent
from chiasm.protocol.worker import EncodeResponse

_CANCELLED = "cancelled"


class _Leaves(Fault):
    async def _leave(self) -> None:
        self.num_met += 1
        self.left.set()
        await self.hold()


class _InDownload(_Leaves):
    async def download_called(self) -> None:
        self.num_met += 1
        self.left.set()


class _InEncode(_Leaves):
    async def encode_called(self, worker: str) -> None:
        await self._leave()


class _AfterEncode(_Leaves):
    async def encoded(self, worker: str, response: EncodeResponse) -> EncodeResponse:
        await self._leave()
        return response


class _BeforePrefill(_Leaves):
    async def generate_called(self, worker: str, request: GenerateRequest) -> None:
        await self._leave()


class _BetweenPrefillAndDecode(_Leaves):
    async def generate_called(self, worker: str, request: GenerateRequest) -> None:
        if request.kv is not None:
            await self._leave()


class _InStream(_Leaves):
    """The stream goes on: it has to be ended."""

    async def event(self, worker: str, request: GenerateRequest, event: GenerateEvent) -> GenerateEvent:
        if isinstance(event, TokenEvent) and not request.hands_over_kv:
            self.num_met += 1
            if self.num_met == 3:
                self.left.set()
        return event


class _SharedEncode(_Leaves):
    """The encode call goes on for whoever else waits for it."""

    async def encode_called(self, worker: str) -> None:
        self.num_met += 1
        self.left.set()
        await self.gone.wait()


SCENARIOS = (
    Scenario(
        name="client-leaves-in-download",
        group="client",
        what="the client leaves while its picture is fetched",
        make=lambda _: _InDownload(),
        outcome=_CANCELLED,
        shows_slow_url=True,
    ),
    Scenario(
        name="client-leaves-in-encode",
        group="client",
        what="the client leaves while its picture is encoded",
        make=lambda _: _InEncode(),
        outcome=_CANCELLED,
    ),
    Scenario(
        name="client-leaves-after-encode",
        group="client",
        what="the client leaves when its embedding is ready, before the router knows",
        make=lambda _: _AfterEncode(),
        outcome=_CANCELLED,
    ),
    Scenario(
        name="client-leaves-before-prefill",
        group="client",
        what="the client leaves between embedding and prefill",
        make=lambda _: _BeforePrefill(),
        outcome=_CANCELLED,
    ),
    Scenario(
        name="client-leaves-before-decode",
        group="client",
        what="the client leaves between prefill and decode",
        make=lambda _: _BetweenPrefillAndDecode(),
        topologies=("e-p-d",),
        outcome=_CANCELLED,
    ),
    Scenario(
        name="client-leaves-in-stream",
        group="client",
        what="the client leaves in the middle of its answer",
        make=lambda _: _InStream(),
        outcome=_CANCELLED,
        max_tokens=1000,
    ),
    Scenario(
        name="client-leaves-shared-encode",
        group="client",
        what="the client leaves while its picture is encoded, for which another request waits",
        make=lambda _: _SharedEncode(),
        outcome=_CANCELLED,
        shares_picture=True,
    ),
)
