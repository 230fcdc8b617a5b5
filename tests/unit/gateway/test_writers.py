"""Events to response bytes: whole and streamed say the same."""

import json

import pytest

from chiasm.gateway.openai.chat_writer import ChatWriter
from chiasm.gateway.openai.completion_writer import CompletionWriter
from chiasm.gateway.openai.plan import Heading
from chiasm.observability.receipt import Receipt
from chiasm.protocol.generation import ChoiceFinished, RequestFinished, TokenEvent, TokenLogprob, Usage
from chiasm.protocol.openai.responses import ChatChunkChoice, Delta

HEADING = Heading(id="r-1", created=5, model="m", system_fingerprint="f")
USAGE = Usage(num_prompt_tokens=7, num_output_tokens=3, num_cached_tokens=2, num_visual_tokens=4)
RECEIPT = Receipt(
    request_id="r-1", model="m", outcome="finished", ttft_s=1.0, e2e_s=2.0, stages_s={}, unaccounted_s=1.0, decode_s=1.0
)


def logprob(text, *top):
    return TokenLogprob(len(text), text, text.encode(), -0.5, tuple(TokenLogprob(0, t, t.encode(), -1.0) for t in top))


def events_of(stream):
    assert stream.endswith(b"data: [DONE]\n\n")
    lines = stream.decode().removesuffix("data: [DONE]\n\n").split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line]


def streamed(writer, *batches, receipt=None):
    return events_of(
        writer.opening() + b"".join(writer.chunks(list(batch)) for batch in batches) + writer.closing(USAGE, receipt)
    )


def whole(writer, *batches, receipt=None):
    for batch in batches:
        writer.add(list(batch))
    return json.loads(writer.whole(USAGE, receipt))


TWO_CHOICES = [
    [TokenEvent(0, "He", (1,)), TokenEvent(1, "Good", (2,))],
    [TokenEvent(0, "llo", (3,)), ChoiceFinished(0, "stop", "\n")],
    [TokenEvent(1, "", (4,)), TokenEvent(1, " day", (5,)), ChoiceFinished(1, "length"), RequestFinished(USAGE)],
]


def test_chat_stream():
    chunks = streamed(ChatWriter(HEADING, 2, has_usage_chunk=False), *TWO_CHOICES)
    assert [chunk["choices"][0]["delta"] for chunk in chunks[:2]] == [{"role": "assistant", "content": ""}] * 2
    texts = {0: "", 1: ""}
    for chunk in chunks[2:]:
        choice = chunk["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content", "")
        assert choice["delta"].get("content") != "", "an empty token makes no chunk"
    assert texts == {0: "Hello", 1: "Good day"}
    ends = [c["choices"][0] for c in chunks if c["choices"][0]["finish_reason"]]
    assert [(c["index"], c["finish_reason"], c.get("stop_reason")) for c in ends] == [
        (0, "stop", "\n"),
        (1, "length", None),
    ]
    assert all("usage" not in chunk for chunk in chunks)
    assert {(c["id"], c["object"], c["created"], c["model"]) for c in chunks} == {
        ("r-1", "chat.completion.chunk", 5, "m")
    }


def test_usage_and_receipt_come_last():
    chunks = streamed(ChatWriter(HEADING, 2, has_usage_chunk=True), *TWO_CHOICES, receipt=RECEIPT)
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 10
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 2, "image_tokens": 4}
    assert chunks[-1]["chiasm"]["receipt"]["ttft_s"] == 1.0


def test_a_receipt_alone_brings_no_usage():
    chunks = streamed(ChatWriter(HEADING, 1, has_usage_chunk=False), receipt=RECEIPT)
    assert chunks[-1]["choices"] == []
    assert "usage" not in chunks[-1]
    assert chunks[-1]["chiasm"]["receipt"]["request_id"] == "r-1"


def test_whole_chat():
    body = whole(ChatWriter(HEADING, 2, has_usage_chunk=False), *TWO_CHOICES)
    assert body["object"] == "chat.completion"
    assert [(c["message"]["content"], c["finish_reason"], c["stop_reason"]) for c in body["choices"]] == [
        ("Hello", "stop", "\n"),
        ("Good day", "length", None),
    ]
    assert body["usage"]["prompt_tokens"] == 7
    assert "chiasm" not in body
    assert whole(ChatWriter(HEADING, 1, has_usage_chunk=False), receipt=RECEIPT)["chiasm"]["receipt"]["e2e_s"] == 2.0


LOGPROBS = [[TokenEvent(0, "a", (1,), (logprob("a", "a", "b"),))], [TokenEvent(0, "", (2,), (logprob("\ufffd"),))]]


def test_chat_logprobs_are_the_same_whole_and_streamed():
    chunks = streamed(ChatWriter(HEADING, 1, has_usage_chunk=False), *LOGPROBS)
    pieces = [entry for chunk in chunks if (lp := chunk["choices"][0]["logprobs"]) for entry in lp["content"]]
    body = whole(ChatWriter(HEADING, 1, has_usage_chunk=False), *LOGPROBS)
    assert body["choices"][0]["logprobs"]["content"] == pieces
    assert pieces[0]["top_logprobs"][1] == {"token": "b", "logprob": -1.0, "bytes": [98]}
    assert len(pieces) == 2, "a token without text still has its log probability"


def test_completion_stream_and_whole_agree():
    for batches in (TWO_CHOICES, LOGPROBS):
        chunks = streamed(CompletionWriter(HEADING, 2, has_usage_chunk=False), *batches)
        texts = ["", ""]
        for chunk in chunks:
            texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
        body = whole(CompletionWriter(HEADING, 2, has_usage_chunk=False), *batches)
        assert [choice["text"] for choice in body["choices"]] == texts
        assert body["object"] == "text_completion"


def test_completion_logprobs():
    body = whole(CompletionWriter(HEADING, 1, has_usage_chunk=False), *LOGPROBS)
    assert body["choices"][0]["logprobs"] == {
        "text_offset": [0, 1],
        "token_logprobs": [-0.5, -0.5],
        "tokens": ["a", "\ufffd"],
        "top_logprobs": [{"a": -0.5, "b": -1.0}, {"\ufffd": -0.5}],
    }
    chunks = streamed(CompletionWriter(HEADING, 1, has_usage_chunk=True), *LOGPROBS)
    assert [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in chunks[:2]] == [[0], [1]]
    assert chunks[-1]["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("text", ['"', "\\", "\n\n", "data: [DONE]", "\u2028", "😀", "\x00"])
def test_no_text_can_break_the_framing(text):
    writer = ChatWriter(HEADING, 1, has_usage_chunk=False)
    data = writer.chunks([TokenEvent(0, text, (1,))])
    assert data.count(b"\n\n") == 1
    assert json.loads(data.removeprefix(b"data: "))["choices"][0]["delta"]["content"] == text


@pytest.mark.parametrize("has_usage_chunk", [False, True])
@pytest.mark.parametrize("text", ["plain", '"', "\x00text\x00", "{}", "é😀"])
def test_a_filled_in_chunk_is_what_encoding_it_whole_gives(text, has_usage_chunk):
    writer = ChatWriter(HEADING, 2, has_usage_chunk=has_usage_chunk)
    for choice in (1, 0, 1):
        whole = writer._chunk(ChatChunkChoice(choice, Delta(content=text)))
        assert writer.chunks([TokenEvent(choice, text, (1,))]) == whole
