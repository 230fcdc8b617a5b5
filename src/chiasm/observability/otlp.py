"""Receipts as OpenTelemetry's spans, in OTLP's JSON form (opentelemetry-proto, trace/v1).

A request is one span with a child for each span of its receipt, and one for decoding. Times and counts alone, as in the
receipt: no content, no URL, no key.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from chiasm.observability.receipt import Receipt
from chiasm.observability.trace import TraceContext, new_id

_SERVER, _INTERNAL = 2, 1
_OK, _ERROR = 1, 2
_SCOPE = "chiasm.receipt"
_FINE = ("finished", "cancelled")
_COUNTS = (
    "num_items",
    "num_visual_tokens",
    "num_prompt_tokens",
    "num_cached_tokens",
    "num_output_tokens",
    "num_cached_embeddings",
)


class EndedRequest(NamedTuple):
    """A receipt, whose trace it belongs to, and when the request ended (Unix time)."""

    endpoint: str
    receipt: Receipt
    context: TraceContext
    ended_unix_s: float


def otlp_body(requests: Iterable[EndedRequest], version: str) -> bytes:
    """The body of a POST to a collector's `/v1/traces`."""
    spans = [span for one in requests for span in _spans(one)]
    resource = {"attributes": _attributes({"service.name": "chiasm", "service.version": version})}
    scope = {"scope": {"name": _SCOPE, "version": version}, "spans": spans}
    return msgspec.json.encode({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]})


def _spans(request: EndedRequest) -> list[dict[str, Any]]:
    receipt, context = request.receipt, request.context
    began_ns = round((request.ended_unix_s - receipt.e2e_s) * 1e9)
    root = _span(context, context.span_id, context.parent_id, request.endpoint, began_ns, (0.0, receipt.e2e_s))
    root["kind"] = _SERVER
    root["attributes"] = _attributes(_facts(receipt))
    root["status"] = {"code": _OK} if receipt.outcome in _FINE else {"code": _ERROR, "message": receipt.outcome}
    children = [_child(context, span.stage, began_ns, (span.start_s, span.end_s), span.item) for span in receipt.spans]
    if receipt.ttft_s is not None and receipt.decode_s > 0:
        children.append(_child(context, "decode", began_ns, (receipt.ttft_s, receipt.e2e_s)))
    return [root, *children]


def _child(
    context: TraceContext, stage: str, began_ns: int, times_s: tuple[float, float], item: int | None = None
) -> dict[str, Any]:
    span = _span(context, new_id(), context.span_id, stage, began_ns, times_s)
    if item is not None:
        span["attributes"] = _attributes({"chiasm.item": item})
    return span


def _span(
    context: TraceContext, span_id: str, parent_id: str, name: str, began_ns: int, times_s: tuple[float, float]
) -> dict[str, Any]:
    start_s, end_s = times_s
    return {
        "traceId": context.trace_id,
        "spanId": span_id,
        "parentSpanId": parent_id,
        "name": name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(began_ns + round(start_s * 1e9)),
        "endTimeUnixNano": str(began_ns + round(end_s * 1e9)),
    }


def _facts(receipt: Receipt) -> dict[str, Any]:
    """What a receipt knows beside its spans; the charged times, which add up, have names of their own."""
    facts: dict[str, Any] = {
        "chiasm.request_id": receipt.request_id,
        "chiasm.outcome": receipt.outcome,
        "gen_ai.request.model": receipt.model,
        "chiasm.unaccounted_s": receipt.unaccounted_s,
    }
    facts |= {f"chiasm.{name}": getattr(receipt, name) for name in _COUNTS}
    facts |= {f"chiasm.charged.{stage}_s": seconds for stage, seconds in receipt.stages_s.items()}
    if receipt.ttft_s is not None:
        facts["chiasm.ttft_s"] = receipt.ttft_s
    if receipt.route is not None:
        facts |= {"chiasm.path": receipt.route.path, "chiasm.policy": receipt.route.policy}
        facts["chiasm.attempts"] = [f"{one.stage} {one.worker} {one.outcome}" for one in receipt.route.attempts]
    return facts


def _attributes(facts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in facts.items()]


def _value(value: str | float | Sequence[str]) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"arrayValue": {"values": [{"stringValue": one} for one in value]}}
