"""The life of one call: body, work, answer, and one ending."""

import asyncio
from contextlib import aclosing
from typing import Protocol, cast

from starlette.types import Receive, Scope, Send

from chiasm.asgi.admission import Admission
from chiasm.asgi.interruptions import Interruptions
from chiasm.asgi.limits import RequestLimits, read_body
from chiasm.asgi.reply import EventStreamReply, json_reply
from chiasm.errors import ChiasmError, EngineError
from chiasm.observability.logs import LOGGER
from chiasm.protocol.generation import GenerateRequest, RequestFinished
from chiasm.protocol.openai.errors import error_headers, status_of
from chiasm.protocol.wire import SUPPLY_PATH, AnswerEncoder, decode_request, decode_supply, encode_encoded, encode_fault
from chiasm.protocol.worker import EncodeRequest, LateWorker, Worker

_LAST_WORDS_TIMEOUT_S = 1.0


class CallLimits(Protocol):
    """The limits that a call knows."""

    @property
    def max_body_bytes(self) -> int:
        """Largest body."""
        ...

    @property
    def receive_timeout_s(self) -> float:
        """Time for a body to arrive."""
        ...


class CallServer(Protocol):
    """What a call knows of the application around it."""

    worker: Worker
    admission: Admission
    interruptions: Interruptions

    @property
    def limits(self) -> CallLimits:
        """What is taken."""
        ...


class Call:
    """Serves one call. `run` may be called once."""

    def __init__(self, server: CallServer, scope: Scope, receive: Receive, send: Send) -> None:
        self._server = server
        self._scope = scope
        self._receive = receive
        self._send = send
        self._stream = EventStreamReply(send, [])
        self._request_id = "-"

    async def run(self) -> None:
        """Serve the call and end it once, whatever happens."""
        try:
            with self._server.admission.open():
                async with RequestLimits(self._server.limits.receive_timeout_s) as limits:
                    with self._server.interruptions.reaching(limits):
                        await self._serve(limits)
        except ChiasmError as error:
            await self._refuse(error)
        except Exception:  # noqa: BLE001 - the border: no fault may end a call without an answer
            LOGGER.exception("request=%s failed inside the worker's server", self._request_id)
            await self._refuse(ChiasmError("Internal error", hint="The worker's log has the details"))

    async def _serve(self, limits: RequestLimits) -> None:
        most_bytes = self._server.limits.max_body_bytes
        body = await read_body(self._receive, self._scope["headers"], most_bytes, "the worker's limit on bodies")
        if self._scope["path"] == SUPPLY_PATH:
            await self._supply(body, limits)
            return
        request = decode_request(self._scope["path"], body)
        del body
        self._request_id = request.request_id
        limits.shorten(request.timeout_s)
        limits.watch(self._receive, self._scope)
        model = self._server.worker.info.model
        if isinstance(request, EncodeRequest):
            response = await self._server.worker.encode(request)
            await json_reply(self._send, 200, encode_encoded(response, request.request_id, model), [])
        else:
            await self._generate(request, AnswerEncoder(self._scope["path"], request.request_id, model))

    async def _supply(self, body: bytes, limits: RequestLimits) -> None:
        request = decode_supply(body)
        self._request_id = request.request_id
        limits.shorten(request.timeout_s)
        limits.watch(self._receive, self._scope)
        await cast("LateWorker", self._server.worker).supply(request)  # the application lets others have no such call
        await json_reply(self._send, 200, b"{}", [])

    async def _generate(self, request: GenerateRequest, encoder: AnswerEncoder) -> None:
        event = None
        async with aclosing(self._server.worker.generate(request)) as events:
            if request.stream:
                async for event in events:
                    await self._stream.write(encoder.chunk(event), is_last=isinstance(event, RequestFinished))
            else:
                gathered = [event async for event in events]
                event = gathered[-1] if gathered else None
        if not isinstance(event, RequestFinished):
            raise EngineError("The engine's stream ended without a result")
        if not request.stream:
            await json_reply(self._send, 200, encoder.whole(gathered), [])

    async def _refuse(self, error: ChiasmError) -> None:
        """Tell the caller, if it still reads. A caller that does not must not hold the call open."""
        try:
            async with asyncio.timeout(_LAST_WORDS_TIMEOUT_S):
                if self._stream.is_started:
                    await self._stream.write(AnswerEncoder.failure(error), is_last=True)
                else:
                    await json_reply(self._send, status_of(error), encode_fault(error), error_headers(error))
        except TimeoutError:
            LOGGER.info("request=%s: the caller did not read the error", self._request_id)
