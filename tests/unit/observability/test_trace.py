"""Traces follow the standards: W3C's header, and OTLP's messages as their own schema reads them."""

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from chiasm.observability.otlp import EndedRequest, otlp_body
from chiasm.observability.receipt import Attempt, Receipt, Route, Span
from chiasm.observability.trace import context_of, parse

_TRACE, _PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
_HEADER = f"00-{_TRACE}-{_PARENT}-01".encode()


def receipt(**changes):
    told = {
        "request_id": "chatcmpl-1",
        "model": "tiny",
        "outcome": "finished",
        "ttft_s": 0.4,
        "e2e_s": 1.0,
        "stages_s": {"encode": 0.1, "prefill": 0.2},
        "unaccounted_s": 0.1,
        "decode_s": 0.6,
        "num_items": 1,
        "route": Route(path="e-pd", policy="adaptive", attempts=(Attempt(stage="encode", worker="e0", outcome="ok"),)),
        "spans": (Span("encode", 0.05, 0.15, 0), Span("prefill", 0.15, 0.35)),
    }
    return Receipt(**(told | changes))


def exported(*requests):
    """What a collector reads."""
    message = json_format.Parse(otlp_body(requests, "1.2.3"), ExportTraceServiceRequest())
    (resource,) = message.resource_spans
    (scope,) = resource.scope_spans
    return resource, list(scope.spans)


def test_a_callers_trace_goes_on():
    context = context_of(_HEADER, 0.0)
    assert (context.trace_id, context.parent_id, context.is_sampled) == (_TRACE, _PARENT, True)
    trace_id, parent_id, flags = parse(context.header)
    assert (trace_id, parent_id, flags) == (_TRACE, context.span_id, 1)
    assert not context_of(_HEADER[:-2] + b"00", 1.0).is_sampled, "the caller decided"


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"nonsense",
        _HEADER.upper(),
        f"00-{'0' * 32}-{_PARENT}-01".encode(),
        f"00-{_TRACE}-{'0' * 16}-01".encode(),
        _HEADER.replace(b"00-", b"ff-", 1),
        _HEADER + b"-more",
        _HEADER + b"\r\nx: y",
        _HEADER + b"\n",
    ],
)
def test_what_is_no_header_begins_a_trace(header):
    assert parse(header) is None
    context = context_of(header, 1.0)
    assert context.parent_id == ""
    assert context.is_sampled
    assert parse(context.header) is not None


def test_later_versions_of_the_header_are_understood():
    assert parse(_HEADER.replace(b"00-", b"01-", 1) + b"-more") == (_TRACE, _PARENT, 1)


def test_the_share_is_kept():
    sampled = sum(context_of(b"", 0.25).is_sampled for _ in range(4000))
    assert 800 < sampled < 1200


def test_a_request_is_a_tree_whose_durations_are_the_receipts():
    context = context_of(_HEADER, 1.0)
    resource, spans = exported(EndedRequest("chat", receipt(), context, 1000.0))
    assert {one.key: one.value.string_value for one in resource.resource.attributes}["service.name"] == "chiasm"
    root, *children = spans
    assert (root.name, root.kind, root.status.code) == ("chat", root.SPAN_KIND_SERVER, root.status.STATUS_CODE_OK)
    assert root.end_time_unix_nano == 1_000_000_000_000
    lengths = {one.name: (one.end_time_unix_nano - one.start_time_unix_nano) / 1e9 for one in spans}
    assert lengths == pytest.approx({"chat": 1.0, "encode": 0.1, "prefill": 0.2, "decode": 0.6})
    assert {one.parent_span_id for one in children} == {root.span_id}
    assert {one.trace_id for one in spans} == {root.trace_id}
    assert all(root.start_time_unix_nano <= one.start_time_unix_nano for one in children)
    assert len({one.span_id for one in spans}) == len(spans)
    facts = {one.key: one.value for one in root.attributes}
    assert facts["chiasm.charged.prefill_s"].double_value == 0.2
    assert facts["chiasm.num_items"].int_value == 1
    assert facts["chiasm.attempts"].array_value.values[0].string_value == "encode e0 ok"


def test_failures_have_their_code_and_no_decoding():
    failed = receipt(outcome="engine_dead", ttft_s=None, decode_s=0.0, route=None)
    _, (root, *children) = exported(EndedRequest("chat", failed, context_of(b"", 1.0), 1000.0))
    assert (root.status.code, root.status.message) == (root.status.STATUS_CODE_ERROR, "engine_dead")
    assert [one.name for one in children] == ["encode", "prefill"]
    assert not root.parent_span_id
