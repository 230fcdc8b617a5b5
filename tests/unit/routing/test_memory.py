"""A fleet's memory is that of its members by the fleet's names; who does not tell has a reason, and holds up nobody."""

import asyncio

from chiasm.errors import EngineDeadError
from chiasm.observability.memory import MemoryPart, WorkerMemory
from chiasm.routing.router import Router
from chiasm.settings import RoutingSettings
from tests.fakes import FakeWorker

_PART = MemoryPart(name="tower", kind="weights", used_bytes=7)


class Telling(FakeWorker):
    """Tells what it takes, late, or not at all."""

    def __init__(self, delay_s=0.0, error=None):
        super().__init__()
        self.delay_s, self.error = delay_s, error

    async def memory(self, timeout_s):
        await asyncio.sleep(self.delay_s)
        if self.error is not None:
            raise self.error
        return (WorkerMemory(worker="its own name", parts=(_PART,)),)


async def test_members_answer_side_by_side_under_the_fleets_names():
    router = Router(RoutingSettings(topology="agg"))
    members = {
        "a": Telling(),
        "slow": Telling(60.0),
        "dead": Telling(error=EngineDeadError("gone")),
        "mute": FakeWorker(),
    }
    for name, worker in members.items():
        router.fleet.add(name, worker).mark_ready()
    async with asyncio.timeout(5.0):
        told = {one.worker: one for one in await router.memory(0.1)}
    assert told["a"].parts == (_PART,)
    assert {name: one.error for name, one in told.items()} == {
        "a": None,
        "slow": "deadline_exceeded",
        "dead": "engine_dead",
        "mute": "unsupported_feature",
    }
