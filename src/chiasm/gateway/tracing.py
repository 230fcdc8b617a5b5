"""The traces of requests: taken from their callers, handed on to workers, and recorded when requests end."""

from collections.abc import Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING

from chiasm.observability.receipt import Receipt
from chiasm.observability.trace import TRACEPARENT, TraceContext, outgoing, parse

if TYPE_CHECKING:
    from chiasm.observability.trace_export import TraceExporter

_current: ContextVar[TraceContext | None] = ContextVar("current", default=None)


class Tracing:
    """A request begins and ends in one task, and so do its context and the header that its calls to workers carry.

    Without an exporter, a caller's header is handed on as it is, and nothing is recorded.
    """

    def __init__(self) -> None:
        self.exporter: TraceExporter | None = None

    def begin(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """A request has come, with these headers."""
        header = b""
        for name, value in headers:
            if name == TRACEPARENT:
                header = value
                break
        if self.exporter is None:
            outgoing.set(header if header and parse(header) else b"")
            return
        context = self.exporter.begin(header)
        _current.set(context)
        outgoing.set(context.header)

    def end(self, endpoint: str, receipt: Receipt) -> None:
        """It has ended."""
        context = _current.get()
        if self.exporter is not None and context is not None:
            self.exporter.record(endpoint, receipt, context)
