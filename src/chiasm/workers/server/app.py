"""The ASGI application of a worker: which path leads where, and how many may be inside."""

from collections.abc import Awaitable, Callable

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from chiasm.asgi.admission import Admission
from chiasm.asgi.auth import Authentication
from chiasm.asgi.interruptions import Interruptions
from chiasm.asgi.reply import json_reply
from chiasm.errors import ChiasmError, ContractVersionError
from chiasm.observability.logs import LOGGER
from chiasm.protocol.adapters import LOAD_PATH, UNLOAD_PATH, Adaptable
from chiasm.protocol.contract import CONTRACT_HEADER, version_to_speak
from chiasm.protocol.deletion import FORGET_PATH, Forgetful
from chiasm.protocol.memory import MEMORY_PATH, Weighable
from chiasm.protocol.openai.errors import encode_error, error_body, fault_body, status_of
from chiasm.protocol.wire import CHAT_PATH, SUPPLY_PATH, TEXT_PATH, encode_fault
from chiasm.protocol.worker import Worker
from chiasm.workers.server.adapters import serve_adapter_call
from chiasm.workers.server.call import Call
from chiasm.workers.server.forgetting import serve_deletion

_MEMORY_TIMEOUT_S = 5.0
_CONTRACT_HEADER = CONTRACT_HEADER.encode()

Reply = Callable[[Scope, Send], Awaitable[None]]


class WorkerServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's server takes. With a `token`, callers must show it; only `/health` is open."""

    max_open_requests: int = 1024
    max_body_bytes: int = 256 * 2**20
    receive_timeout_s: float = 30.0
    keep_alive_s: float = 75.0
    drain_timeout_s: float = 30.0
    token: str | None = None


def create_worker_app(worker: Worker, limits: WorkerServerLimits | None = None) -> "WorkerApp":
    """Build the application. The caller owns the worker and closes it after the server has stopped.

    Serve it with `chiasm.launch.server.serve_app(app, app, listener, limits, stop, on_ready)`.
    """
    return WorkerApp(worker, limits or WorkerServerLimits())


class WorkerApp:
    """`POST` to the calls of the contract and to what deletes; `GET` `/health`, `/info`, `/stats` and `/memory`."""

    def __init__(self, worker: Worker, limits: WorkerServerLimits) -> None:
        self.worker = worker
        self.limits = limits
        self.admission = Admission(limits.max_open_requests, 0)
        self.interruptions = Interruptions()
        self._replies: dict[str, Reply] = {"/health": self._health, "/info": self._info, "/stats": self._stats}
        routes: ASGIApp = self._route
        self._entry = Authentication(routes, [limits.token]) if limits.token else routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        assert scope["type"] == "http", "served without lifespan and websockets"
        await self._entry(scope, receive, send)

    def drain(self) -> None:
        """Take no new requests; those open may finish."""
        self.admission.close()

    def abort(self) -> None:
        """End all open requests now, each with `ShuttingDownError`."""
        self.interruptions.abort()

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        is_call = path in (CHAT_PATH, TEXT_PATH) or (path == SUPPLY_PATH and self.worker.info.takes_late_embeddings)
        if is_call and method == "POST":
            await Call(self, scope, receive, send).run()
        elif path == FORGET_PATH and method == "POST" and isinstance(self.worker, Forgetful):
            await serve_deletion(self.worker, scope, receive, send)
        elif path in (LOAD_PATH, UNLOAD_PATH) and method == "POST" and isinstance(self.worker, Adaptable):
            await serve_adapter_call(self.worker, scope, receive, send)
        elif path == MEMORY_PATH and method == "GET" and isinstance(self.worker, Weighable):
            await self._memory(self.worker, send)
        elif path in self._replies and method == "GET":
            await self._replies[path](scope, send)
        elif is_call or path in self._replies:
            await json_reply(send, 405, encode_error(fault_body(405, "This path takes another method")), [])
        else:
            await json_reply(send, 404, encode_error(fault_body(404, "No such path")), [])

    async def _health(self, _scope: Scope, send: Send) -> None:
        is_healthy = self.worker.stats().is_healthy
        status = "draining" if self.admission.is_closed else "ok" if is_healthy else "engine_dead"
        await json_reply(send, 200 if is_healthy else 503, msgspec.json.encode({"status": status}), [])

    async def _memory(self, worker: Weighable, send: Send) -> None:
        try:
            await json_reply(send, 200, msgspec.json.encode(await worker.memory(_MEMORY_TIMEOUT_S)), [])
        except ChiasmError as error:
            await json_reply(send, status_of(error), encode_error(error_body(error)), [])

    async def _info(self, scope: Scope, send: Send) -> None:
        said = next((value.decode("latin-1") for name, value in scope["headers"] if name == _CONTRACT_HEADER), None)
        try:
            info = msgspec.structs.replace(self.worker.info, version=version_to_speak(said))
            await json_reply(send, 200, msgspec.json.encode(info), [])
        except ContractVersionError as error:
            LOGGER.warning("A gateway was refused: %s. %s", error.message, error.hint)
            await json_reply(send, status_of(error), encode_fault(error), [])

    async def _stats(self, _scope: Scope, send: Send) -> None:
        await json_reply(send, 200, msgspec.json.encode(self.worker.stats()), [])
