"""What an actor is: the owner of one process on its node. Ray moves bytes and strings, and no object of ours."""

import threading

import msgspec
import ray

from chiasm.errors import ChiasmError
from chiasm.launch.cluster.placement import Assignment, on_node
from chiasm.launch.processes.messages import Failed, Load, Order, Ready, Roster
from chiasm.launch.processes.process import WorkerProcess

_GATEWAY = "chiasm.launch.cluster.gateway"
_VLLM = "chiasm.launch.cluster.vllm_server"
_LOOK_S = 3600.0


class Host:
    """Keeps a place, then starts a process there, which ends with it: its standard input does.

    Its methods run on threads of their own, so that one may wait while others are called.
    """

    def __init__(self, assignment: bytes) -> None:
        """Take an `Assignment`, for later."""
        self._assignment = msgspec.json.decode(assignment, type=Assignment)
        self._process: WorkerProcess | None = None
        self._begun = threading.Event()

    def node(self) -> str:
        """The node that it came to."""
        return str(ray.get_runtime_context().get_node_id())

    def wait_ready(self) -> tuple[bytes, int]:
        """Start the process and wait for it; returns its word, `Ready` or `Failed`, and its number on the node."""
        try:
            host = _node_address()
            order = on_node(self._assignment, host)
            self._process = WorkerProcess(order, _program(order))
            self._begun.set()
            self._process.wait_ready(lambda _what, _share: None, self._assignment.start_timeout_s)
        except ChiasmError as error:  # Ray's errors are not ours
            return msgspec.json.encode(Failed(error.code, error.message, error.hint)), 0
        finally:
            self._begun.set()
        address = self._process.address.replace("//localhost:", f"//{host}:")
        return msgspec.json.encode(Ready(address)), self._process.pid

    def tell(self, roster: bytes) -> None:
        """Hand a `Roster` down to a gateway, once it has begun."""
        self._begun.wait()
        if self._process is not None:
            self._process.tell(msgspec.json.decode(roster, type=Roster))

    def load(self) -> bytes:
        """What a gateway reported last, as JSON of `Load` or of null."""
        load: Load | None = self._process.load if self._process is not None else None
        return msgspec.json.encode(load)

    def ended(self) -> None:
        """Wait for the process's end."""
        self._begun.wait()
        while self._process is not None and not self._process.wait(_LOOK_S):
            pass

    def terminate(self) -> None:
        """Ask the process to drain and end."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """End the process now, and the waits for one that never began."""
        self._begun.set()
        if self._process is not None:
            self._process.kill()


def _program(order: Order) -> str:
    if not order.spec.roles:
        return _GATEWAY
    return _VLLM if order.settings.engine.kind == "vllm" else ""  # the embedded engine's worker


def _node_address() -> str:
    """Where other nodes reach this one, as `ray start --node-ip-address` said: a machine may have several addresses."""
    here = ray.get_runtime_context().get_node_id()
    return next(str(one["NodeManagerAddress"]) for one in ray.nodes() if one["NodeID"] == here)
