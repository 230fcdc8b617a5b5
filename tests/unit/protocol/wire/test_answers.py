"""The form of answers, and what becomes of those that are wrong."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chiasm.errors import ChiasmError, EngineDeadError, EngineError, MediaDecodeError
from chiasm.protocol.generation import ChoiceFinished, RequestFinished, TokenEvent, TokenLogprob, Usage
from chiasm.protocol.wire import CHAT_PATH, TEXT_PATH, AnswerEncoder, StreamDecoder, decode_encoded, decode_whole
from chiasm.protocol.wire.reading import MAX_EVENT_BYTES

FINISHED = RequestFinished(Usage(num_prompt_tokens=5, num_output_tokens=2))


def encoder(path=CHAT_PATH):
    return AnswerEncoder(path, "r-1", "m")


def payloads(data):
    return [
        json.loads(block.removeprefix(b"data: ")) for block in data.split(b"\n\n") if block and b"[DONE]" not in block
    ]


def test_a_token_is_a_chunk_of_openais_form():
    (chunk,) = payloads(encoder().chunk(TokenEvent(1, "hi", (7,))))
    assert chunk.pop("created") > 1e9
    assert chunk == {
        "id": "r-1",
        "object": "chat.completion.chunk",
        "model": "m",
        "choices": [
            {
                "index": 1,
                "delta": {"content": "hi"},
                "logprobs": None,
                "finish_reason": None,
                "stop_reason": None,
                "token_ids": [7],
            }
        ],
    }


def test_the_text_call_has_its_text_elsewhere():
    (chunk,) = payloads(encoder(TEXT_PATH).chunk(TokenEvent(0, "hi", (7,))))
    assert chunk["object"] == "text_completion"
    assert chunk["choices"][0]["text"] == "hi"
    assert "delta" not in chunk["choices"][0]


def test_a_stream_ends_with_counts_and_the_end_mark():
    data = encoder().chunk(FINISHED)
    (chunk,) = payloads(data)
    assert chunk["choices"] == []
    assert chunk["usage"]["total_tokens"] == 7
    assert data.endswith(b"data: [DONE]\n\n")


def test_log_probabilities_have_bytes_and_no_infinity():
    event = TokenEvent(0, "", (7,), (TokenLogprob(7, "\ufffd", b"\xf0", -0.5, (TokenLogprob(8, "x", b"x", -1e30),)),))
    (chunk,) = payloads(encoder().chunk(event))
    (entry,) = chunk["choices"][0]["logprobs"]["content"]
    assert entry["bytes"] == [240]
    assert entry["top_logprobs"][0]["logprob"] == -9999.0


def test_what_other_servers_send_is_read():
    """A role, keep-alive comments, a text with its end in one chunk, counts without details, unknown fields."""
    decoder = StreamDecoder(1)
    events = decoder.feed(
        b": ping\n\n"
        b'data: {"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
        b'"finish_reason":null,"token_ids":null}],"prompt_token_ids":null,"usage":null}\n\n'
        b'data: {"choices":[{"index":0,"delta":{"content":"hi","reasoning":null},"logprobs":null,'
        b'"finish_reason":"length","stop_reason":null,"token_ids":[4]}]}\n\n'
        b'data: {"choices":[],"usage":{"prompt_tokens":3,"total_tokens":4,"completion_tokens":1}}\n\n'
        b"data: [DONE]\n\n"
    )
    usage = Usage(num_prompt_tokens=3, num_output_tokens=1)
    assert events == [TokenEvent(0, "hi", (4,)), ChoiceFinished(0, "length"), RequestFinished(usage)]
    assert decoder.is_done


def test_an_error_ends_a_stream_after_what_came_before():
    encode = encoder()
    error = MediaDecodeError("broken", item=1)
    decoder = StreamDecoder(1)
    events = decoder.feed(encode.chunk(TokenEvent(0, "a", (1,))) + encode.failure(error))
    assert events == [TokenEvent(0, "a", (1,))]
    assert type(decoder.failure) is MediaDecodeError
    assert decoder.failure.item == 1


def test_a_dead_engine_is_known_by_its_words():
    decoder = StreamDecoder(1)
    decoder.feed(
        b'data: {"error":{"message":"EngineCore encountered an issue.","type":"x","param":null,"code":500}}\n\n'
    )
    assert type(decoder.failure) is EngineDeadError


@pytest.mark.parametrize(
    "payload",
    [
        b"nonsense",
        b"[]",
        b'{"choices":[{"index":4,"delta":{"content":"x"}}]}',
        b'{"choices":[{"index":-1,"delta":{"content":"x"}}]}',
        b'{"choices":[{"index":0,"delta":{"content":5}}]}',
        b'{"choices":[{"index":0,"delta":{},"finish_reason":"tired"}]}',
        b'{"choices":[],"usage":{"prompt_tokens":-3,"total_tokens":4,"completion_tokens":1}}',
        b"[" * 100_000,
    ],
)
def test_an_answer_that_cannot_be_understood_is_the_workers_fault(payload):
    decoder = StreamDecoder(4)
    assert decoder.feed(b"data: " + payload + b"\n\n") == []
    assert type(decoder.failure) is EngineError
    with pytest.raises(EngineError):
        decode_whole(payload, 4)


def test_an_event_without_an_end_is_not_kept_for_ever():
    decoder = StreamDecoder(1)
    decoder.feed(b"data: ")
    while decoder.failure is None:
        decoder.feed(b"x" * (MAX_EVENT_BYTES // 4))
    assert type(decoder.failure) is EngineError


def test_a_whole_answer_without_counts_is_not_one():
    with pytest.raises(EngineError):
        decode_whole(b'{"choices":[]}', 1)


@pytest.mark.parametrize("body", [b"{}", b'{"ec_transfer_params":{}}', b'{"ec_transfer_params":null}', b"x"])
def test_an_encoder_must_give_every_item_an_embedding(body):
    with pytest.raises(EngineError):
        decode_encoded(body, 1)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=5))
def test_noise_is_an_error_or_nothing(pieces):
    decoder = StreamDecoder(2)
    for piece in pieces:
        decoder.feed(piece)
    assert decoder.failure is None or isinstance(decoder.failure, ChiasmError)
