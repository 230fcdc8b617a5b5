"""What one side of the wire encodes, the other decodes to an equal object, field by field."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chiasm.protocol.generation import (
    ChoiceFinished,
    GenerateRequest,
    RequestFinished,
    SamplingParams,
    TokenEvent,
    TokenLogprob,
    Usage,
    merge_adjacent,
)
from chiasm.protocol.media import MediaItem
from chiasm.protocol.wire import (
    CHAT_PATH,
    TEXT_PATH,
    AnswerEncoder,
    StreamDecoder,
    decode_encoded,
    decode_request,
    decode_whole,
    encode_encoded,
    encode_request,
)
from tests.unit.protocol.wire import strategies as wire

PATH = st.sampled_from([CHAT_PATH, TEXT_PATH])
EXAMPLES = settings(max_examples=60, deadline=None)


@EXAMPLES
@given(wire.generate_requests())
def test_a_generate_request_survives(request):
    call = encode_request(request, "model")
    assert decode_request(call.path, call.body) == request


@EXAMPLES
@given(wire.ENCODE_REQUEST)
def test_an_encode_request_survives(request):
    call = encode_request(request, "model")
    assert call.path == CHAT_PATH
    assert decode_request(call.path, call.body) == request


@EXAMPLES
@given(wire.encode_responses())
def test_an_encode_response_survives(response):
    body = encode_encoded(response, "r", "model")
    assert decode_encoded(body, len(response.handles)) == response


@EXAMPLES
@given(PATH, wire.EVENTS, st.lists(st.integers(1, 400), min_size=1, max_size=10))
def test_a_stream_survives_in_whatever_pieces_it_comes(path, events, sizes):
    encoder = AnswerEncoder(path, "r", "model")
    data = b"".join(encoder.chunk(event) for event in events)
    decoder, received = StreamDecoder(wire.NUM_CHOICES), []
    while data:
        size = sizes[len(data) % len(sizes)]
        received += decoder.feed(data[:size])
        data = data[size:]
    assert merge_adjacent(received) == merge_adjacent(events)  # tokens that came together may be joined
    assert decoder.is_done
    assert decoder.failure is None


@EXAMPLES
@given(PATH, wire.EVENTS)
def test_a_whole_answer_survives_but_for_where_it_was_cut(path, events):
    body = AnswerEncoder(path, "r", "model").whole(events)
    assert summary(decode_whole(body, wire.NUM_CHOICES)) == summary(events)


def summary(events):
    """All that the events say, whatever their number and order among choices."""
    choices = {}
    for event in events:
        if isinstance(event, TokenEvent):
            text, ids, logprobs, ended = choices.get(event.choice, ("", (), None, None))
            if event.logprobs is not None:
                logprobs = (logprobs or ()) + event.logprobs
            choices[event.choice] = (text + event.text, ids + event.token_ids, logprobs, ended)
        elif isinstance(event, ChoiceFinished):
            choices[event.choice] = (*choices.get(event.choice, ("", (), None))[:3], event)
    return choices, events[-1]


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        (GenerateRequest, wire.generate_requests()),
        (SamplingParams, wire.SAMPLING),
        (MediaItem, wire.ITEM),
        (TokenEvent, wire.TOKEN),
        (ChoiceFinished, wire.CHOICE_FINISHED),
        (RequestFinished, wire.FINISHED),
        (Usage, wire.USAGE),
        (TokenLogprob, wire.LOGPROBS),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_random_objects_differ_from_the_defaults_in_every_field(kind, strategy):
    """A field added later must be drawn, too, or its loss would not be seen."""
    seen = set()

    @settings(max_examples=150, deadline=None, database=None, derandomize=True)
    @given(strategy)
    def look(drawn):
        for value in drawn if isinstance(drawn, tuple) else (drawn,):
            for field in msgspec.structs.fields(kind):
                if field.required or getattr(value, field.name) != field.default:
                    seen.add(field.name)

    look()
    assert {field.name for field in msgspec.structs.fields(kind)} - seen <= {"version", "kind"}
