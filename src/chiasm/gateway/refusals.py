"""Requests that are not let in: answered before their body is read, counted, and told to the log in sums.

Nothing else is kept of one: no receipt, no trace, no line. They would cost what a tenant's limit is there to save, and
push out what others' requests have left. A tenant that asks on without a pause waits for most of these answers, so that
who sends the next request when the last is answered cannot keep the gateway busy.
"""

import asyncio
import time
from collections.abc import Callable

from starlette.types import Send

from chiasm.asgi.reply import json_reply
from chiasm.errors import ChiasmError, RateLimitedError
from chiasm.observability.logs import log_refusals
from chiasm.observability.metrics import GatewayMetrics
from chiasm.protocol.openai.errors import encode_error, error_body, error_headers, status_of
from chiasm.tenancy.budget import Budget

_PROMPT_PER_MINUTE = 600.0
"""Answers to a tenant that are given at once; ten seconds' worth gather."""
_MAX_WAITING = 4096
_MAX_WAITING_OF_TENANT = 1024
_LINE_INTERVAL_S = 10.0


class Refusals:
    """Answers those who are not let in. Belongs to one event loop.

    Attributes:
        num_waiting: Answers that are given later; bounded, and those beyond are given at once.
    """

    def __init__(
        self,
        metrics: GatewayMetrics,
        delay_s: float,
        title_of: Callable[[str], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`delay_s` is how long an answer may wait; `title_of` is how the log calls a tenant."""
        self._metrics = metrics
        self._delay_s = delay_s
        self._title_of = title_of
        self._clock = clock
        self._tallies: dict[str, _Tally] = {}
        self._ends: set[asyncio.Future[None]] = set()  # of what is waited for
        self.num_waiting = 0

    def hurry(self) -> None:
        """Give all answers at once from now on, and write what was not written: the server ends, which loses both.

        Harmless when called again.
        """
        self._delay_s = 0.0
        for end in self._ends:
            _come(end)
        for tally in self._tallies.values():
            self._write(tally)

    async def answer(self, endpoint: str, tenant: str, error: ChiasmError, request_id: str, send: Send) -> None:
        """Answer one request, which counts as received and ended."""
        self._metrics.refuse(endpoint, error.code)
        tally = self._tallies.get(tenant)
        if tally is None:
            tally = self._tallies[tenant] = _Tally(tenant, self._clock())
        self._count(tally, error.code)
        if self._delay_s and isinstance(error, RateLimitedError) and self._must_wait(tally):
            await self._wait(tally, min(self._delay_s, error.retry_after_s))
        headers = [(b"x-request-id", request_id.encode()), *error_headers(error)]
        await json_reply(send, status_of(error), encode_error(error_body(error)), headers)

    def _must_wait(self, tally: "_Tally") -> bool:
        """Whether the tenant has had its answers that are given at once, and there is room to wait."""
        now_s = self._clock()
        if tally.prompt.wait_s(now_s) <= 0:
            tally.prompt.take(1.0, now_s)
            return False
        return tally.num_waiting < _MAX_WAITING_OF_TENANT and self.num_waiting < _MAX_WAITING

    async def _wait(self, tally: "_Tally", delay_s: float) -> None:
        tally.num_waiting += 1
        self.num_waiting += 1
        try:
            await _sleep(delay_s, self._ends)
        finally:
            tally.num_waiting -= 1
            self.num_waiting -= 1

    def _count(self, tally: "_Tally", code: str) -> None:
        tally.codes[code] = tally.codes.get(code, 0) + 1
        if not tally.has_line_coming:
            self._tell(tally)

    def _tell(self, tally: "_Tally") -> None:
        """Write what was not written yet, the first at once, and look again after a while as long as there is some."""
        tally.has_line_coming = bool(tally.codes)
        if tally.codes:
            self._write(tally)
            asyncio.get_running_loop().call_later(_LINE_INTERVAL_S, self._tell, tally)

    def _write(self, tally: "_Tally") -> None:
        if tally.codes:
            log_refusals(self._title_of(tally.tenant), tally.codes)
            tally.codes = {}


async def _sleep(seconds: float, ends: set[asyncio.Future[None]]) -> None:
    """Wait so long, or until what is among `ends` meanwhile has come."""
    loop = asyncio.get_running_loop()
    end = loop.create_future()
    timer = loop.call_later(seconds, _come, end)
    ends.add(end)
    try:
        await end
    finally:
        timer.cancel()
        ends.discard(end)


def _come(end: asyncio.Future[None]) -> None:
    if not end.done():
        end.set_result(None)


class _Tally:
    """What one tenant was refused since the last line about it."""

    __slots__ = ("codes", "has_line_coming", "num_waiting", "prompt", "tenant")

    def __init__(self, tenant: str, now_s: float) -> None:
        self.tenant = tenant
        self.prompt = Budget("prompt refusals", _PROMPT_PER_MINUTE, now_s)
        self.num_waiting = 0
        self.codes: dict[str, int] = {}
        self.has_line_coming = False
