"""What a supervisor does on its event loop, with processes that are none."""

import asyncio
import threading

from chiasm.launch.processes import supervisor as supervisor_room
from chiasm.launch.processes.specs import WorkerSpec
from chiasm.launch.processes.supervisor import Supervisor


class Deaf:
    """Does not end when asked, and is killed only once others had their turn on the loop."""

    name, address, started_s, pid, is_alive = "w", "unix:w", 0.0, 1, True

    def __init__(self):
        self._loop = asyncio.get_running_loop()
        self.num_killed = 0

    def wait_ready(self, progress):
        """It is."""

    async def ended(self):
        await asyncio.Event().wait()

    def terminate(self):
        """It does not listen."""

    def kill(self):
        others = threading.Event()
        self._loop.call_soon_threadsafe(others.set)
        self.num_killed += others.wait(5)


async def test_a_process_that_is_slow_to_die_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(supervisor_room, "_TERMINATE_TIMEOUT_S", 0.01)
    process = Deaf()
    supervisor = Supervisor([WorkerSpec(name="w", roles=("encode",))], lambda spec: process, 1.0)
    supervisor.start(lambda what, share: None)
    await supervisor.renew("w")
    assert process.num_killed == 1
