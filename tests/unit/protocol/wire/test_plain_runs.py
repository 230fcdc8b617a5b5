"""A run that is split gives what each event parsed for itself gives, joined; and nothing else is taken for a run."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chiasm.protocol.generation import ChoiceFinished, RequestFinished, TokenEvent, TokenLogprob, Usage, merge_adjacent
from chiasm.protocol.wire import CHAT_PATH, TEXT_PATH, AnswerEncoder, StreamDecoder
from chiasm.protocol.wire.plain_runs import PlainRuns

TEXT = st.one_of(
    st.text(max_size=6), st.sampled_from(['"', "\\", '"},"', '","', "\n\n", "data: ", "}]}", "\ud7ff", "é"])
)
IDS = st.lists(st.integers(0, 99), max_size=3).map(tuple)
LOGPROBS = st.none() | st.just((TokenLogprob(1, "x", b"x", -1.0),))
TOKEN = st.builds(TokenEvent, st.sampled_from([0, 0, 0, 1]), TEXT, IDS, LOGPROBS)
PLAIN = st.builds(TokenEvent, st.just(0), TEXT, IDS)
EVENTS = st.lists(st.one_of(PLAIN, PLAIN, TOKEN, st.just(ChoiceFinished(1, "stop", "x"))), max_size=12)
EXAMPLES = settings(max_examples=150, deadline=None)
END = RequestFinished(Usage(num_prompt_tokens=1, num_output_tokens=2))


def foreign(event):
    """As other servers write tokens: blanks, no ids, other fields."""
    choice = {"index": event.choice, "delta": {"content": event.text}, "finish_reason": None}
    return f"data: {json.dumps({'id': 'x', 'choices': [choice], 'created': 1}, ensure_ascii=False)}\n\n".encode()


def one_by_one(data, num_choices=2):
    """What the parser says, which gets each event in a stream of its own."""
    blocks = [block + b"\n\n" for block in data.split(b"\n\n") if block]
    return merge_adjacent([event for block in blocks for event in StreamDecoder(num_choices).feed(block)])


def in_pieces(data, size):
    decoder = StreamDecoder(2)
    return merge_adjacent([e for at in range(0, len(data), size) for e in decoder.feed(data[at : at + size])]), decoder


@EXAMPLES
@given(EVENTS, st.sampled_from([CHAT_PATH, TEXT_PATH]), st.integers(1, 4000))
def test_events_are_the_same_whether_split_or_parsed(events, path, size):
    encoder = AnswerEncoder(path, "r-1", "model")
    data = b"".join(encoder.chunk(event) for event in [*events, END])
    got, decoder = in_pieces(data, size)
    assert got == one_by_one(data)
    assert decoder.is_done
    assert decoder.failure is None


@EXAMPLES
@given(st.lists(PLAIN, max_size=12), st.integers(1, 2000))
def test_so_are_those_of_other_servers(events, size):
    data = b"".join(map(foreign, events))
    assert in_pieces(data, size)[0] == one_by_one(data)


@EXAMPLES
@given(
    st.lists(st.sampled_from([b"a", b'"', b"\\", b'","', b"\\ud83d", b"\\ude00", b"],[", b"\n", b"\xff"]), max_size=5)
)
def test_a_broken_event_is_as_broken_in_a_run(texts):
    """Of whatever stands where a text belongs, a run reads what the parser reads, or leaves it to the parser."""
    block = b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"token_ids":[7]}]}\n\n'
    data = b"".join(block % text for text in [b"start", *texts, b"end"])
    decoder = StreamDecoder(1)
    got = merge_adjacent(decoder.feed(block % b"start") + decoder.feed(data.removeprefix(block % b"start")))
    parsed, failure = [], None
    for part in data.split(b"\n\n")[:-1]:
        alone = StreamDecoder(1)
        parsed += alone.feed(part + b"\n\n")
        failure = alone.failure
        if failure is not None:
            break
    assert got == merge_adjacent(parsed)
    assert (decoder.failure is None) == (failure is None)


def test_a_run_is_not_parsed_event_by_event(monkeypatch):
    encoder = AnswerEncoder(CHAT_PATH, "r-1", "model")
    decoder = StreamDecoder(1)
    decoder.feed(encoder.chunk(TokenEvent(0, "first", (1,))))
    monkeypatch.setattr(StreamDecoder, "_read", None)
    run = b"".join(encoder.chunk(TokenEvent(0, f'"{n}\n', (n, n))) for n in range(50))
    texts = "".join(f'"{n}\n' for n in range(50))
    assert decoder.feed(run) == [TokenEvent(0, texts, tuple(n for n in range(50) for _ in "xx"))]


@pytest.mark.parametrize(
    "block",
    [
        b'data: {"id":"id","choices":[{"index":0,"delta":{"content":"id"},"token_ids":[7]}]}',  # the text stands twice
        b'data: {"choices":[{"index":0,"token_ids":[7],"delta":{"content":"a"}}]}',  # ids before the text
        b'data: {"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[]}]}',
        b'data: {"choices":[{"index":0,"delta":{"content":"\\u0061"},"token_ids":[7]}]}',  # written otherwise
    ],
)
def test_where_the_text_stands_must_be_clear(block):
    (event,) = StreamDecoder(1).feed(block + b"\n\n")
    assert PlainRuns.like(block, event) is None
