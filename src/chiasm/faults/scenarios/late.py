"""Embeddings that follow their prompt: what goes wrong when the worker has begun to compute it."""

from collections.abc import Callable
from functools import partial

from chiasm.errors import EngineError
from chiasm.faults.fault import Fault, Processes
from chiasm.faults.scenarios.base import Scenario, tampered

_late = partial(Scenario, group="late", overlap="always", pictures=2)


class _CallFails(Fault):
    """The first call with an embedding is answered with an error."""

    async def supply_called(self, worker: str) -> None:
        self.num_met += 1
        if self.num_met == 1:
            raise EngineError("The call was not understood")


class _EncoderFails(Fault):
    """The encoder of the second picture fails, when the first picture is there."""

    def __init__(self) -> None:
        super().__init__()
        self._num_calls = 0

    async def encode_called(self, worker: str) -> None:
        self._num_calls += 1
        if self._num_calls == 2:
            self.num_met += 1
            raise EngineError("The encoder failed")


class _ClientLeaves(Fault):
    async def supply_called(self, worker: str) -> None:
        self.num_met += 1
        self.left.set()
        await self.hold()


def _made(kind: type[Fault]) -> Callable[[Processes | None], Fault]:
    return lambda _: kind()


SCENARIOS = (
    _late(
        name="late-call-fails",
        what="the call that brings an embedding fails",
        make=_made(_CallFails),
        min_failures=1,
    ),
    _late(
        name="late-embedding-dropped",
        what="the handle comes, and what it names is gone",
        make=tampered("drop"),
        min_failures=1,
    ),
    _late(
        name="late-embedding-corrupted",
        what="one bit of an embedding is wrong",
        make=tampered("corrupt"),
        min_failures=1,
    ),
    _late(
        name="late-encoder-fails",
        what="an encoder fails while the prompt is computed",
        make=_made(_EncoderFails),
        min_failures=1,
    ),
    _late(
        name="client-leaves-ahead",
        what="the client leaves while its prompt is computed ahead of a picture",
        make=_made(_ClientLeaves),
        outcome="cancelled",
    ),
)
