"""The life of one pooling request: arrival, body, slot, worker, answer, and one ending."""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from starlette.types import Receive, Scope, Send

from chiasm.asgi.limits import RequestLimits, read_body
from chiasm.asgi.reply import json_reply
from chiasm.errors import (
    ChiasmError,
    InvalidRequestError,
    MediaError,
    ModelNotFoundError,
    RequestCancelledError,
    RequestTooLargeError,
    UnsupportedFeatureError,
    UnsupportedMediaError,
)
from chiasm.gateway.entry import let_in
from chiasm.gateway.exchange.account import FINISHED, Account, num_bytes_of
from chiasm.gateway.exchange.payloads import CutBody
from chiasm.gateway.pooling.call import Call, Dialect, Write
from chiasm.gateway.pooling.numbering import PictureNumbers
from chiasm.gateway.state import Gateway, Ingest
from chiasm.media.reference import MediaReference
from chiasm.observability.logs import LOGGER
from chiasm.observability.receipt import Span
from chiasm.protocol.generation import Usage
from chiasm.protocol.media import MediaItem
from chiasm.protocol.openai.errors import encode_error, error_body, error_headers, status_of
from chiasm.protocol.pooling.fields import Heading, PoolingUsage
from chiasm.protocol.pooling.work import (
    PoolingTask,
    PoolingWorker,
    PoolInput,
    PoolParams,
    PoolRequest,
    PoolResponse,
)

if TYPE_CHECKING:
    from chiasm.asgi.admission import Seat
    from chiasm.media.spool import SpoolLease
    from chiasm.observability.receipt import Receipt

_LAST_WORDS_TIMEOUT_S = 1.0


class PoolingEndpoint:
    """An ASGI application that serves one dialect."""

    def __init__(self, gateway: Gateway, dialect: Dialect, max_inputs: int) -> None:
        self._gateway = gateway
        self._dialect = dialect
        self._max_inputs = max_inputs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await PoolingExchange(self._gateway, self._dialect, self._max_inputs, scope, receive, send).run()


class PoolingExchange:
    """Serves one request, and is its `Services`. `run` may be called once."""

    def __init__(
        self, gateway: Gateway, dialect: Dialect, max_inputs: int, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._gateway = gateway
        self._dialect = dialect
        self._max_inputs = max_inputs
        self._scope = scope
        self._receive = receive
        self._send = send
        self._id = gateway.ids.next(dialect.id_prefix)
        self._account = Account(self._id, gateway.worker.info.model)
        self._headers = [(b"x-chiasm-receipt-id", self._id.encode()), (b"x-request-id", self._id.encode())]
        self._truncated: list[int] = []
        self._finished: Receipt | None = None
        self._seat: Seat | None = None
        self._limits: RequestLimits | None = None
        self._lease: SpoolLease | None = None
        self._media: list[tuple[str, int] | None] = []
        self._numbers = PictureNumbers()

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
            finished = self._finished if outcome == FINISHED else None
            receipt = finished or self._account.receipt(outcome)
            self._gateway.metrics.media(receipt.spans, self._media)
            self._gateway.end(self._dialect.name, receipt, self._scope["tenant"])
            if self._lease is not None:
                self._lease.close()

    @property
    def request_id(self) -> str:
        """See `Services`."""
        return self._id

    async def pool(self, task: PoolingTask, inputs: tuple[PoolInput, ...], params: PoolParams) -> PoolResponse:
        """See `Services`."""
        if len(inputs) > self._max_inputs:
            raise RequestTooLargeError(
                f"{len(inputs)} inputs are more than {self._max_inputs}",
                hint="Split them over several requests, or raise pooling.max_inputs",
            )
        worker = _pooling_worker(self._gateway)
        async with self._gateway.admission.slot(self._account.clock, self._seat):
            request = PoolRequest(
                request_id=self._id,
                task=task,
                inputs=inputs,
                params=params,
                cache_salt=self._gateway.scopes.salt_of(self._scope["tenant"]),
                timeout_s=self._remaining_s(),
            )
            self._account.dispatched()
            try:
                response = await worker.pool(request)
            except MediaError as error:
                raise self._numbers.about(error, inputs) from error
        self._take(response, self._numbers.spans(response.spans, inputs))
        return response

    async def collect(self, references: Sequence[MediaReference]) -> list[MediaItem]:
        """See `Services`."""
        ingest, lease = self._begin_collecting(references)
        items = await ingest.collect(references, self._remaining_s(), self._account.clock, lease, self._scope["tenant"])
        self._collected(references, items)
        return items

    async def collect_each(self, references: Sequence[MediaReference]) -> list[MediaItem | MediaError]:
        """See `Services`."""
        ingest, lease = self._begin_collecting(references)
        items = await ingest.collect_each(
            references, self._remaining_s(), self._account.clock, lease, self._scope["tenant"]
        )
        self._collected(references, items)
        return items

    def _begin_collecting(self, references: Sequence[MediaReference]) -> "tuple[Ingest, SpoolLease | None]":
        worker = _pooling_worker(self._gateway)
        for item, reference in enumerate(references):
            if reference.kind != "image" or not worker.pooling.takes_images:
                what = "pictures" if reference.kind == "image" else f"media of kind '{reference.kind}'"
                raise UnsupportedMediaError(
                    f"Media item {item}: {worker.info.model} takes no {what}", param=reference.param, item=item
                )
        self._account.num_items = len(references)
        self._lease = self._gateway.ingest.lease()
        return self._gateway.ingest, self._lease

    def _collected(self, references: Sequence[MediaReference], found: Sequence[MediaItem | MediaError]) -> None:
        items = [one for one in found if isinstance(one, MediaItem)]
        self._numbers.note(references, found)
        self._media = [(one.format, one.width * one.height) if isinstance(one, MediaItem) else None for one in found]
        self._account.media = self._gateway.media_keys.sizes(items)
        self._gateway.tenants.use(self._scope["tenant"], media_bytes=sum(map(num_bytes_of, items)))

    def _remaining_s(self) -> float:
        assert self._limits is not None, "a request is served within its limits"
        return self._limits.remaining_s

    async def _serve(self, limits: RequestLimits) -> None:
        gateway = self._gateway
        most_bytes = gateway.settings.max_body_bytes
        body = await read_body(self._receive, self._scope["headers"], most_bytes, "gateway.max_body_bytes")
        limits.watch(self._receive, self._scope)
        self._limits = limits
        call = self._call(body)
        del body
        self._check(call, limits)
        self._account.received()
        write = await call.run(self)
        await self._answer(call, write)

    def _call(self, body: bytes) -> Call:
        info = _pooling_worker(self._gateway).pooling
        cut = CutBody(body)
        call = self._dialect.call(cut.rest, info)
        if not cut.num_cuts:
            return call
        references = cut.restored(call.references)
        return self._dialect.call(body, info) if references is None else call.restored(references)

    def _check(self, call: Call, limits: RequestLimits) -> None:
        info, most_s = self._gateway.worker.info, self._gateway.settings.request_timeout_s
        if call.model is not None and call.model != info.model:
            raise ModelNotFoundError("This model is not served here", hint=f"Use '{info.model}'", param="/model")
        timeout_s = call.options.timeout_s if call.options else None
        if timeout_s is not None:
            if timeout_s > most_s:
                raise InvalidRequestError(
                    f"timeout_s {timeout_s:g} is more than this server's {most_s:g}", param="/chiasm/timeout_s"
                )
            limits.shorten(timeout_s)

    def _take(self, response: PoolResponse, spans: Sequence[Span]) -> None:
        usage = Usage(
            num_prompt_tokens=sum(one.num_tokens for one in response.outputs),
            num_output_tokens=0,
            num_visual_tokens=response.num_visual_tokens,
            num_cached_embeddings=response.num_cached_embeddings,
        )
        self._account.add_pooled(spans, usage)
        self._truncated += [index for index, one in enumerate(response.outputs) if one.is_truncated]

    async def _answer(self, call: Call, write: Write) -> None:
        receipt = self._finished = self._account.receipt(FINISHED)
        tokens, info = receipt.num_prompt_tokens, self._gateway.worker.info
        heading = Heading(
            id=self._id,
            created=int(time.time()),
            model=info.model,
            dtype=info.dtype,
            usage=PoolingUsage(prompt_tokens=tokens, total_tokens=tokens),
            truncated=tuple(self._truncated),
            receipt=receipt if call.options is not None and call.options.receipt else None,
        )
        self._headers.append((b"x-chiasm-dtype", info.dtype.encode()))
        if self._truncated:
            self._headers.append((b"x-chiasm-truncated-inputs", str(len(self._truncated)).encode()))
        await json_reply(self._send, 200, msgspec.json.encode(write(heading)), self._headers)

    async def _refuse(self, error: ChiasmError) -> None:
        """Tell the client, if it still reads. A client that does not must not hold the request open."""
        body = encode_error(error_body(error))
        try:
            async with asyncio.timeout(_LAST_WORDS_TIMEOUT_S):
                await json_reply(self._send, status_of(error), body, [*self._headers, *error_headers(error)])
        except TimeoutError:
            LOGGER.info("request=%s: the client did not read the error", self._id)


def _pooling_worker(gateway: Gateway) -> PoolingWorker:
    """Raises `UnsupportedFeatureError` where the model only generates."""
    worker = gateway.worker
    if isinstance(worker, PoolingWorker):
        return worker
    raise UnsupportedFeatureError(
        f"{worker.info.model} is served for generating text, not for pooling",
        hint="Serve an embedding, scoring or classifying model, or this one with --task",
    )
