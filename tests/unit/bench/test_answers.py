"""Answers become records, however their bytes are cut."""

import json

import pytest

from chiasm.bench.client.answer import Answer
from chiasm.bench.record import Record


def _answer(kind="chat"):
    ends = []
    record = Record(
        index=0,
        request_class="all",
        kind=kind,
        phase="measured",
        num_body_bytes=0,
        num_wanted_tokens=4,
        scheduled_ns=0,
        sent_ns=5,
    )
    return Answer(record, lambda: ends.append(1)), record, ends


def _chunk(text=None, **fields):
    choices = [] if text is None else [{"index": 0, "delta": {"content": text}}]
    return f"data: {json.dumps({'choices': choices} | fields)}\n\n".encode()


def _feed(answer, pieces, status=200):
    answer.head(status, 10)
    for number, piece in enumerate(pieces):
        answer.body(piece, 100 * (number + 1))
    answer.complete(9999)


def test_a_stream_leaves_the_instants_of_its_text():
    answer, record, ends = _answer()
    role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    usage = {"prompt_tokens": 7, "completion_tokens": 4}
    receipt = {"ttft_s": 0.5, "stages_s": {"prefill": 0.4}, "unaccounted_s": 0.1, "spans": [1]}
    last = _chunk(usage=usage, chiasm={"receipt": receipt})
    _feed(answer, [role, _chunk("a"), _chunk("b"), _chunk("c"), last + b"data: [DONE]\n\n"])
    assert (record.first_ns, record.last_ns, record.gaps_ns, record.end_ns) == (200, 400, [100, 100], 9999)
    assert (record.num_prompt_tokens, record.num_output_tokens, record.is_counted_by_server) == (7, 4, True)
    assert record.receipt.stages_s == {"prefill": 0.4}
    assert (record.outcome, record.status, record.head_ns, ends) == ("finished", 200, 10, [1])


@pytest.mark.parametrize("size", [1, 3, 17, 1000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_cuts_change_nothing(size, newline):
    data = (_chunk("a") + b": comment\n\n" + _chunk("é") + b"data: [DONE]\n\n").replace(b"\n", newline)
    answer, record, _ = _answer()
    _feed(answer, [data[i : i + size] for i in range(0, len(data), size)])
    assert (record.outcome, record.num_output_tokens, len(record.gaps_ns)) == ("finished", 2, 1)


@pytest.mark.parametrize(
    ("pieces", "outcome"),
    [
        ([_chunk("a")], "cut_off"),
        ([_chunk("a"), b'data: {"error":{"code":"engine_dead"}}\n\ndata: [DONE]\n\n'], "engine_dead"),
        ([b'data: {"error":{"code":500}}\n\n'], "error_event"),
        ([b"data: {\n\ndata: [DONE]\n\n"], "bad_answer"),
        ([b"data: \xff\n\ndata: [DONE]\n\n"], "bad_answer"),
        ([], "cut_off"),
    ],
)
def test_a_stream_that_does_not_end_well(pieces, outcome):
    answer, record, ends = _answer()
    _feed(answer, pieces)
    assert (record.outcome, ends) == (outcome, [1])


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (429, b'{"error":{"code":"overloaded"}}', "overloaded"),
        (429, b'{"error":{"code":429,"type":"x"}}', "http_429"),
        (500, b"<html>", "http_500"),
        (503, b'{"error":{"code":"A b\\u0000"}}', "http_503"),
        (400, b"[]", "http_400"),
    ],
)
def test_refusals_have_the_servers_code_or_the_status(status, body, outcome):
    answer, record, _ = _answer()
    _feed(answer, [body], status)
    assert (record.outcome, record.status, record.first_ns) == (outcome, status, None)


@pytest.mark.parametrize(
    ("body", "outcome"), [(b'{"data":[],"usage":{"total_tokens":9}}', "finished"), (b"{", "bad_answer")]
)
def test_vectors_come_whole(body, outcome):
    answer, record, _ = _answer("embeddings")
    _feed(answer, [body[:3], body[3:]])
    assert (record.outcome, record.num_output_tokens) == (outcome, 0)
    assert record.num_prompt_tokens == (9 if outcome == "finished" else None)


def test_giving_up_keeps_what_had_come():
    answer, record, ends = _answer()
    answer.head(200, 10)
    answer.body(_chunk("a"), 20)
    answer.fail("cancelled", 30)
    assert (record.outcome, record.num_output_tokens, record.end_ns, ends) == ("cancelled", 1, 30, [1])
