"""Writing down what operators do, before it is done."""

import asyncio
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chiasm.asgi.auth import refuse
from chiasm.errors import ChiasmError
from chiasm.tenancy.audit import AuditLog

if TYPE_CHECKING:
    from chiasm.tenancy.keys import Caller


class Audited:
    """ASGI middleware behind `Access`: a line before each request, and for one that may change something one after it.

    Nothing is done that could not be written down. Queries and bodies are not written.
    """

    def __init__(self, app: ASGIApp, log: AuditLog) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request of an operator."""
        caller: Caller = scope["caller"]
        who = {"key": caller.key_id, "tenant": caller.tenant, "method": scope["method"], "path": scope["path"]}
        try:
            await asyncio.to_thread(self._log.record, "request", who)  # it waits for the disk
        except OSError:
            await refuse(send, ChiasmError("The audit file cannot be written", hint="See gateway.audit_file"))
            return
        if scope["method"] == "GET":
            await self._app(scope, receive, send)
            return
        statuses: list[int] = []

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            await asyncio.to_thread(self._log.record, "response", who | {"status": statuses[0] if statuses else None})
