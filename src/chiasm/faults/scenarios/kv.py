"""Keys and values on their way from the prefilling worker to the one that decodes."""

from collections.abc import Callable

import msgspec

from chiasm.faults.client import FINISHED
from chiasm.faults.fault import Fault, Processes
from chiasm.faults.scenarios.base import Scenario, tampered
from chiasm.protocol.generation import GenerateEvent, GenerateRequest, RequestFinished
from chiasm.protocol.kv import KvMetadata


class _Announced(Fault):
    """The first handle to keys and values says something else."""

    def __init__(self, change: Callable[[KvMetadata], KvMetadata]) -> None:
        super().__init__()
        self._change = change

    async def event(self, worker: str, request: GenerateRequest, event: GenerateEvent) -> GenerateEvent:
        """See `Fault`."""
        if self.num_met or not isinstance(event, RequestFinished) or event.kv is None:
            return event
        self.num_met += 1
        kv = msgspec.structs.replace(event.kv, metadata=self._change(event.kv.metadata))
        return msgspec.structs.replace(event, kv=kv)


def _scenario(
    name: str, what: str, make: Callable[[Processes | None], Fault], min_failures: int = 1, outcome: str = FINISHED
) -> Scenario:
    return Scenario(
        name=name,
        group="kv",
        what=what,
        make=make,
        topologies=("e-p-d",),
        outcome=outcome,
        min_failures=min_failures,
        is_picture_first=True,
    )


def _announcing(**fields: object) -> Callable[[Processes | None], Fault]:
    return lambda _: _Announced(lambda metadata: msgspec.structs.replace(metadata, **fields))


SCENARIOS = (
    _scenario("kv-dropped", "keys and values are gone when they are to be taken", tampered("drop", tensor="kv")),
    _scenario(
        "kv-delayed",
        "keys and values arrive late, within transfer.timeout_s",
        tampered("delay", tensor="kv", delay_s=0.1),
        min_failures=0,
    ),
    _scenario(
        "kv-late",
        "keys and values do not arrive within transfer.timeout_s",
        tampered("delay", tensor="kv", delay_s=1e6),
    ),
    _scenario("kv-truncated", "the last byte of keys and values is missing", tampered("truncate", tensor="kv")),
    _scenario("kv-corrupted", "one bit of keys and values is wrong", tampered("corrupt", tensor="kv")),
    _scenario(
        "kv-full",
        "the quota of the only prefilling worker is used up",
        tampered("full", tensor="kv"),
        outcome="overloaded",
    ),
    _scenario("kv-wrong-prompt", "keys and values of another prompt are announced", _announcing(prompt_hash="0" * 64)),
    _scenario("kv-wrong-revision", "keys and values of another model are announced", _announcing(model_revision="no")),
)
