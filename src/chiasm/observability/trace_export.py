"""Sending traces to a collector, beside the requests and never in their way."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Literal
from urllib.parse import urlsplit

import aiohttp

from chiasm.errors import InvalidSettingError
from chiasm.observability.otlp import EndedRequest, otlp_body
from chiasm.observability.receipt import Receipt
from chiasm.observability.trace import TraceContext, context_of

logger = logging.getLogger(__name__)

Count = Callable[[Literal["sent", "dropped"], int], None]
"""Told what became of so many requests' traces."""

_PATH = "/v1/traces"
_MAX_WAITING = 2048
_MAX_BATCH = 256
_INTERVAL_S = 1.0
_TIMEOUT_S = 5.0
_LAST_TIMEOUT_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_MULTIPLE_CHOICES = 300
_MAX_ANSWER_BYTES = 65_536


class TraceExporter:
    """A bounded queue and who empties it. Lives on one event loop.

    Recording appends to the queue and no more. What finds it full, or a collector that does not take it, is dropped
    and counted: after a failure nothing is sent for a while, longer each time.
    """

    def __init__(self, endpoint: str, share: float, version: str, *, interval_s: float = _INTERVAL_S) -> None:
        """Take the collector's address, as `http://host:4318`. Raises `InvalidSettingError`."""
        self._url = _url_of(endpoint)
        self._share = share
        self._version = version
        self._interval_s = interval_s
        self._waiting: deque[EndedRequest] = deque()
        self._pause_s = 0.0
        self.count: Count = _uncounted

    def begin(self, header: bytes) -> TraceContext:
        """The context of a request that came with this `traceparent`, or none."""
        return context_of(header, self._share)

    def record(self, endpoint: str, receipt: Receipt, context: TraceContext) -> None:
        """Take a request that has ended."""
        if not context.is_sampled:
            return
        if len(self._waiting) >= _MAX_WAITING:
            self.count("dropped", 1)
            return
        self._waiting.append(EndedRequest(endpoint, receipt, context, time.time()))

    async def run(self) -> None:
        """Send what comes until cancelled; then what is left, for two seconds at most."""
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            try:
                while True:
                    await asyncio.sleep(max(self._interval_s, self._pause_s))
                    while self._waiting and not await self._send(session):
                        pass
            except asyncio.CancelledError:
                await self._send_rest(session)
                raise

    async def _send_rest(self, session: aiohttp.ClientSession) -> None:
        try:
            async with asyncio.timeout(_LAST_TIMEOUT_S):
                while self._waiting and not await self._send(session):
                    pass
        except TimeoutError:
            pass
        self.count("dropped", len(self._waiting))

    async def _send(self, session: aiohttp.ClientSession) -> bool:
        """Send one batch; says whether that failed and there is a pause."""
        batch = [self._waiting.popleft() for _ in range(min(_MAX_BATCH, len(self._waiting)))]
        try:
            problem = await self._posted(session, await asyncio.to_thread(otlp_body, batch, self._version))
        except asyncio.CancelledError:
            self._waiting.extendleft(reversed(batch))  # whoever ends us sends it once more, or counts it
            raise
        if problem is None:
            self.count("sent", len(batch))
            if self._pause_s:
                logger.info("The collector takes traces again")
            self._pause_s = 0.0
            return False
        self.count("dropped", len(batch))
        if not self._pause_s:
            logger.warning("The collector takes no traces (%s); requests go on without", problem)
        self._pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
        return True

    async def _posted(self, session: aiohttp.ClientSession, body: bytes) -> str | None:
        """Why the collector did not take it; None when it did."""
        headers = {"Content-Type": "application/json"}
        try:
            async with session.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
                await response.content.read(_MAX_ANSWER_BYTES)  # so that the connection serves again; no more than that
                return None if response.status < _MULTIPLE_CHOICES else f"HTTP status {response.status}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return type(error).__name__


def _uncounted(what: str, number: int) -> None:
    pass


def _url_of(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query
    except ValueError:
        is_good = False
    if not is_good:
        raise InvalidSettingError(
            "observability.otlp_endpoint is no collector's address", hint="For example http://127.0.0.1:4318"
        )
    address = endpoint.rstrip("/")
    return address if address.endswith(_PATH) else address + _PATH
