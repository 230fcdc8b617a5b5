"""The life of one request: arrival, body, media, slot, generation, answer, and one ending."""

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec
from starlette.types import Receive, Scope, Send

from chiasm.asgi.limits import RequestLimits, read_body
from chiasm.asgi.reply import EventStreamReply, json_reply
from chiasm.errors import (
    ChiasmError,
    EngineError,
    InvalidRequestError,
    MediaError,
    ModelNotFoundError,
    RequestCancelledError,
    UnsupportedMediaError,
)
from chiasm.gateway.entry import let_in
from chiasm.gateway.exchange.account import FINISHED, Account, num_bytes_of
from chiasm.gateway.exchange.generation import Generation
from chiasm.gateway.exchange.payloads import MIN_CUT_BYTES, CutBody
from chiasm.gateway.openai.plan import Dialect, Heading, Plan, Writer
from chiasm.gateway.state import Gateway
from chiasm.observability.logs import LOGGER
from chiasm.observability.receipt import Receipt
from chiasm.protocol.generation import GenerateEvent, GenerateRequest, RequestFinished, TokenEvent
from chiasm.protocol.media import MediaItem
from chiasm.protocol.openai.errors import encode_error, error_body, error_headers, status_of
from chiasm.protocol.openai.responses import DONE

if TYPE_CHECKING:
    from chiasm.asgi.admission import Seat
    from chiasm.media.spool import SpoolLease
    from chiasm.protocol.adapters import AdapterRef

_LAST_WORDS_TIMEOUT_S = 1.0


class Exchange:
    """Serves one request. `run` may be called once."""

    def __init__(self, gateway: Gateway, dialect: Dialect, scope: Scope, receive: Receive, send: Send) -> None:
        self._gateway = gateway
        self._dialect = dialect
        self._scope = scope
        self._receive = receive
        self._send = send
        self._id = gateway.ids.next(dialect.id_prefix)
        self._account = Account(self._id, gateway.worker.info.model)
        named = self._id.encode()
        self._headers = [(b"x-chiasm-receipt-id", named), (b"x-request-id", named)]
        self._stream = EventStreamReply(send, self._headers)
        self._finished: Receipt | None = None
        self._adapter: AdapterRef | None = None
        self._lease: SpoolLease | None = None
        self._seat: Seat | None = None
        self._media: list[tuple[str, int]] = []

    async def run(self) -> None:
        """Let the request in and serve it, or say why not."""
        await let_in(self._gateway, self._dialect.name, self._id, self._scope, self._send, self._run)

    async def _run(self, seat: "Seat") -> None:
        """Serve the request and record its one ending, whatever happens."""
        outcome = RequestCancelledError.code
        self._gateway.metrics.receive(self._dialect.name)
        try:
            async with RequestLimits(self._gateway.settings.request_timeout_s, awaits_body=True) as limits:
                self._seat, seat.request = seat, limits
                with self._gateway.interruptions.reaching(limits):
                    await self._serve(limits)
            outcome = FINISHED
        except ChiasmError as error:
            outcome = error.code
            await self._refuse(error)
        except Exception:  # noqa: BLE001 - the border: no fault may end a request without an answer
            LOGGER.exception("request=%s failed inside the gateway", self._id)
            failure = ChiasmError("Internal error", hint="The server's log has the details under the request's id")
            outcome = failure.code
            await self._refuse(failure)
        finally:
            receipt = self._receipt(outcome)
            if self._media:
                self._gateway.metrics.media(receipt.spans, self._media)
            self._gateway.end(self._dialect.name, receipt, self._scope["tenant"], self._account.num_streamed_tokens)
            self._let_go()

    async def _serve(self, limits: RequestLimits) -> None:
        most_bytes = self._gateway.settings.max_body_bytes
        body = await read_body(self._receive, self._scope["headers"], most_bytes, "gateway.max_body_bytes")
        limits.watch(self._receive, self._scope)
        plan = self._plan(body)
        del body
        self._check(plan, limits)
        items = await self._collect(plan, limits)
        plan = plan.without_urls()  # megabytes of base64 need not live as long as the request
        writer = self._dialect.writer(self._heading(), plan)
        self._account.received()
        async with self._gateway.admission.slot(self._account.clock, self._seat):
            self._account.dispatched()
            await self._generate(plan, self._requests(plan, items, limits), writer)
        await self._close(plan, writer)

    def _plan(self, body: bytes) -> Plan:
        if len(body) < MIN_CUT_BYTES:
            return self._dialect.plan(body)
        cut = CutBody(body)
        plan = self._dialect.plan(cut.rest)
        if not cut.num_cuts:
            return plan
        references = cut.restored(plan.references)
        return self._dialect.plan(body) if references is None else msgspec.structs.replace(plan, references=references)

    def _check(self, plan: Plan, limits: RequestLimits) -> None:
        info, most_s = self._gateway.worker.info, self._gateway.settings.request_timeout_s
        if plan.model is not None and plan.model != info.model:
            self._choose_adapter(plan.model)
        if plan.references and not info.takes_images:
            raise UnsupportedMediaError(
                f"Media item 0: {info.model} takes no pictures", param=plan.references[0].param, item=0
            )
        if plan.timeout_s is not None:
            if plan.timeout_s > most_s:
                raise InvalidRequestError(
                    f"timeout_s {plan.timeout_s:g} is more than this server's {most_s:g}", param="/chiasm/timeout_s"
                )
            limits.shorten(plan.timeout_s)

    def _choose_adapter(self, name: str) -> None:
        adapter = self._gateway.adapters.find(name)
        if adapter is None:
            hint = f"Use '{self._gateway.worker.info.model}', or an adapter that /v1/models lists"
            raise ModelNotFoundError("This model is not served here", hint=hint, param="/model")
        self._adapter = adapter.ref
        self._account.model = name

    async def _collect(self, plan: Plan, limits: RequestLimits) -> tuple[MediaItem, ...]:
        if not plan.references:
            return ()
        self._account.num_items = len(plan.references)
        ingest, clock = self._gateway.ingest, self._account.clock
        self._lease = ingest.lease()
        items = await ingest.collect(plan.references, limits.remaining_s, clock, self._lease, self._scope["tenant"])
        assert len(items) == len(plan.references)
        self._media = [(item.format, item.width * item.height) for item in items]
        self._account.media = self._gateway.media_keys.sizes(items)
        self._gateway.tenants.use(self._scope["tenant"], media_bytes=sum(map(num_bytes_of, items)))
        for alias in plan.aliases:
            self._gateway.aliases.bind(self._scope["tenant"], alias.name, items[alias.item].identity, alias.param)
        return tuple(items)

    def _requests(self, plan: Plan, items: tuple[MediaItem, ...], limits: RequestLimits) -> list[GenerateRequest]:
        return [
            GenerateRequest(
                request_id=self._id if index == 0 else f"{self._id}-{index}",
                prompt=prompt,
                items=items,
                sampling=plan.sampling,
                stream=plan.is_stream,
                cache_salt=self._gateway.scopes.salt_of(self._scope["tenant"]),
                adapter=self._adapter,
                timeout_s=limits.remaining_s,
            )
            for index, prompt in enumerate(plan.prompts)
        ]

    async def _generate(self, plan: Plan, requests: list[GenerateRequest], writer: Writer) -> None:
        try:
            if len(requests) == 1 and not plan.is_stream:
                events = await self._gather(requests[0])
                writer.add(events)
                return
            async with Generation(self._gateway.worker, requests, is_stream=plan.is_stream) as generation:
                await self._relay(plan, generation, writer)
        except MediaError as error:
            if error.item is not None:  # the worker knows the item's position, the request its place in the body
                error.param = plan.references[error.item].param
            raise

    async def _gather(self, request: GenerateRequest) -> list[GenerateEvent]:
        """All events of a whole response with one prompt, which needs no reader beside it."""
        events: list[GenerateEvent] = []
        stream = self._gateway.worker.generate(request)
        try:
            async for event in stream:
                events.append(event)
                if self._lease is not None and isinstance(event, TokenEvent):
                    self._let_go()
        finally:
            try:
                await stream.aclose()
            finally:
                self._account.add(events)
        if not events or not isinstance(events[-1], RequestFinished):
            raise EngineError("The engine's stream ended without a result")
        return events

    async def _relay(self, plan: Plan, generation: Generation, writer: Writer) -> None:
        while batch := await generation.next_batch():
            if plan.is_stream:
                await self._write(writer, batch)
            else:
                writer.add(batch)
            self._account.add(batch)
            if self._lease is not None and any(isinstance(event, TokenEvent) for event in batch):
                self._let_go()

    async def _write(self, writer: Writer, batch: list[GenerateEvent]) -> None:
        data = writer.chunks(batch)
        if self._stream.is_started:
            if data:
                await self._stream.write(data)
        elif data:
            with self._account.clock.stage("first_token"):
                await self._stream.write(writer.opening() + data)
            self._account.first_token()

    async def _close(self, plan: Plan, writer: Writer) -> None:
        self._finished = self._account.receipt(FINISHED)
        receipt = self._finished if plan.wants_receipt else None
        usage = self._account.usage
        if plan.is_stream:
            await self._stream.write(writer.closing(usage, receipt), is_last=True)
        else:
            await json_reply(self._send, 200, writer.whole(usage, receipt), self._headers)

    def _let_go(self) -> None:
        """Let go of the media's files: after the first token nobody needs them for a second try."""
        if self._lease is not None:
            self._lease.close()
            self._lease = None

    async def _refuse(self, error: ChiasmError) -> None:
        """Tell the client, if it still reads. A client that does not must not hold the request open."""
        body = encode_error(error_body(error))
        try:
            async with asyncio.timeout(_LAST_WORDS_TIMEOUT_S):
                if self._stream.is_started:
                    await self._stream.write(b"data: " + body + b"\n\n" + DONE, is_last=True)
                else:
                    await json_reply(self._send, status_of(error), body, [*self._headers, *error_headers(error)])
        except TimeoutError:
            LOGGER.info("request=%s: the client did not read the error", self._id)

    def _receipt(self, outcome: str) -> Receipt:
        """The receipt to keep; for a finished request the very one its response may carry."""
        if outcome == FINISHED and self._finished is not None:
            return self._finished
        return self._account.receipt(outcome)

    def _heading(self) -> Heading:
        info = self._gateway.worker.info
        fingerprint = f"chiasm-{info.model_revision}"
        if self._adapter is not None:
            fingerprint += f"-{self._adapter.revision[:16]}"
        return Heading(id=self._id, created=int(time.time()), model=self._account.model, system_fingerprint=fingerprint)
