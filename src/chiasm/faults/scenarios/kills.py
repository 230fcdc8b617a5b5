"""Worker processes that are killed, the moment chosen by stopping them first."""

import asyncio

from chiasm.faults.fault import Fault, Processes
from chiasm.faults.scenarios.base import Scenario
from chiasm.protocol.generation import GenerateEvent, GenerateRequest, TokenEvent
from chiasm.protocol.worker import EncodeResponse

_UNDER_WAY_S = 0.3
"""After this a call to a stopped worker waits for its answer."""


class _Kills(Fault):
    def __init__(self, processes: Processes | None) -> None:
        super().__init__()
        assert processes is not None, "a scenario of this group gets a fleet of processes"
        self._processes = processes

    def _kill(self, worker: str) -> None:
        self.num_met += 1
        self._processes.kill(worker)

    def _kill_in_call(self, worker: str) -> None:
        """Let a call that is about to begin get no answer, and then its end."""
        self.num_met += 1
        self._processes.pause(worker)
        asyncio.get_running_loop().call_later(_UNDER_WAY_S, self._processes.kill, worker)


class _EncoderBefore(_Kills):
    async def encode_called(self, worker: str) -> None:
        if not self.num_met:
            self._kill(worker)


class _EncoderIn(_Kills):
    async def encode_called(self, worker: str) -> None:
        if not self.num_met:
            self._kill_in_call(worker)


class _EncoderInTransfer(_Kills):
    async def encoded(self, worker: str, response: EncodeResponse) -> EncodeResponse:
        if not self.num_met:
            self._kill_in_call(worker)
        return response


class _EncoderAfter(_Kills):
    async def encoded(self, worker: str, response: EncodeResponse) -> EncodeResponse:
        if not self.num_met:
            self._kill(worker)
        return response


class _Prefill(_Kills):
    async def generate_called(self, worker: str, request: GenerateRequest) -> None:
        if not self.num_met and request.kv is None:
            self._kill_in_call(worker)


class _DecodeBeforeFirst(_Kills):
    async def generate_called(self, worker: str, request: GenerateRequest) -> None:
        if not self.num_met and request.kv is not None:
            self._kill_in_call(worker)


class _InStream(_Kills):
    async def event(self, worker: str, request: GenerateRequest, event: GenerateEvent) -> GenerateEvent:
        if not self.num_met and isinstance(event, TokenEvent) and not request.hands_over_kv:
            self._kill(worker)
        return event


SCENARIOS = (
    Scenario(
        name="encoder-killed-before",
        group="kill",
        what="the encoder is killed before it is asked",
        make=_EncoderBefore,
        min_failures=1,
    ),
    Scenario(
        name="encoder-killed-in-encode",
        group="kill",
        what="the encoder is killed while it encodes",
        make=_EncoderIn,
        min_failures=1,
    ),
    Scenario(
        name="encoder-killed-in-transfer",
        group="kill",
        what="the encoder is killed while its embedding is taken",
        make=_EncoderInTransfer,
    ),
    Scenario(
        name="encoder-killed-after",
        group="kill",
        what="the encoder is killed when it has answered",
        make=_EncoderAfter,
    ),
    Scenario(
        name="prefill-killed",
        group="kill",
        what="the prefilling worker is killed before the first token; there is another one",
        make=_Prefill,
        topologies=("e-pd", "auto"),
        min_failures=1,
    ),
    Scenario(
        name="only-prefill-killed",
        group="kill",
        what="the prefilling worker is killed before the first token; there is no other one",
        make=_Prefill,
        topologies=("e-p-d",),
        min_failures=1,
        timeout_s=120.0,  # it waits for the next one to load
    ),
    Scenario(
        name="decode-killed-before-token",
        group="kill",
        what="the decoding worker is killed before its first token; there is another one",
        make=_DecodeBeforeFirst,
        topologies=("e-p-d",),
        min_failures=1,
    ),
    Scenario(
        name="decode-killed-in-stream",
        group="kill",
        what="the decoding worker is killed in the middle of its answer",
        make=_InStream,
        outcome="engine_dead",
        min_failures=1,
        max_failures=1,
        max_tokens=1000,
    ),
)
