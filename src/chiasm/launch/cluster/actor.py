"""An actor as a supervisor sees it: a process somewhere in the cluster."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import ray
from ray.exceptions import GetTimeoutError, RayError

from chiasm.errors import EngineStartError, error_class
from chiasm.launch.cluster.host import Host
from chiasm.launch.cluster.placement import Assignment, Room
from chiasm.launch.processes.messages import Failed, Load, Ready, Roster

_ANSWER_TIMEOUT_S = 5.0
_NUM_THREADS = 8  # two calls wait, for the start and for the end; the others are short


class ActorProcess:
    """A `Process` in an actor of Ray's. Ray chooses the node and never starts the actor again: its supervisor does."""

    def __init__(self, assignment: Assignment, room: Room, strategy: Any, place_timeout_s: float) -> None:
        """Ask for a place.

        Args:
            assignment: What the node is told.
            room: What is set aside.
            strategy: Where Ray shall look, in its own words.
            place_timeout_s: Time for it to find a node.
        """
        self.name = assignment.order.spec.name
        self.address = ""
        self.started_s = time.monotonic()
        self.node = ""
        self.pid = 0
        self._start_timeout_s = assignment.start_timeout_s + _ANSWER_TIMEOUT_S
        self._room = room
        self._place_timeout_s = place_timeout_s
        self._actor = (
            ray.remote(Host)
            .options(
                num_cpus=room.cpus,
                num_gpus=room.gpus,
                scheduling_strategy=strategy,
                max_restarts=0,
                max_concurrency=_NUM_THREADS,
            )
            .remote(msgspec.json.encode(assignment))
        )
        self._ended = self._actor.ended.remote()
        self._ready: Any = None

    @property
    def is_alive(self) -> bool:
        """Whether neither the process nor its actor nor its node is known to have ended."""
        return not self.wait(0.0)

    def begin(self) -> None:
        """Have the process start as soon as there is a node, without waiting for it."""
        if self._ready is None:
            self._ready = self._actor.wait_ready.remote()

    def wait_placed(self) -> None:
        """Wait until it has a node; nothing runs there yet. Raises `EngineStartError`; it must be killed then."""
        self.node = self._answer(self._actor.node.remote(), self._place_timeout_s, f"no node has {self._room} free")

    def wait_ready(self, progress: Callable[[str, float], None]) -> None:
        """See `Process`."""
        try:
            progress(f"{self.name}: looking for a node", 0.0)
            self.begin()
            self.wait_placed()
            progress(f"{self.name}: starting on node {self.node[:8]}", 0.1)
            told, self.pid = self._answer(self._ready, self._start_timeout_s, "its node does not answer")
            report = msgspec.json.decode(told, type=Ready | Failed)
            if isinstance(report, Failed):
                raise error_class(report.code)(report.message, hint=report.hint)
            self.address = report.address
        except BaseException:
            self.kill()
            raise

    async def ended(self) -> None:
        """See `Process`: the end of the process, the actor or the node."""
        with suppress(RayError):
            await asyncio.wrap_future(self._ended.future())

    def terminate(self) -> None:
        """See `Process`."""
        self._actor.terminate.remote()

    def wait(self, timeout_s: float) -> bool:
        """See `Process`."""
        done, _ = ray.wait([self._ended], timeout=timeout_s)
        return bool(done)

    def kill(self) -> None:
        """See `Process`. The actor goes, too, and gives back what was set aside."""
        ray.wait([self._actor.kill.remote()], timeout=_ANSWER_TIMEOUT_S)
        ray.kill(self._actor)

    def tell(self, roster: Roster) -> None:
        """Hand a roster down to a gateway; one that has ended does not hear it."""
        self._actor.tell.remote(msgspec.json.encode(roster))

    async def load(self) -> Load | None:
        """What a gateway reported last; None where it does not answer, or has not reported."""
        with suppress(RayError, TimeoutError):
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                told = await asyncio.wrap_future(self._actor.load.remote().future())
            return msgspec.json.decode(told, type=Load | None)
        return None

    def _answer(self, call: Any, timeout_s: float, otherwise: str) -> Any:
        try:
            return ray.get(call, timeout=timeout_s)
        except GetTimeoutError:
            raise EngineStartError(
                f"'{self.name}' did not start within {timeout_s:.0f} s: {otherwise}",
                hint="`ray status` lists what nodes have; settings of [cluster] say what is asked for",
            ) from None
        except RayError as error:
            raise EngineStartError(
                f"'{self.name}' ended while it started: {type(error).__name__}", hint="See Ray's logs of its node"
            ) from error
