"""What is made of vLLM's answers."""

import json

import pytest

from chiasm.errors import (
    ContextLengthError,
    EngineDeadError,
    EngineError,
    EngineStartError,
    EngineStepError,
    HandleExpiredError,
    InvalidRequestError,
    LayoutMismatchError,
    MediaDecodeError,
    ModelNotFoundError,
    TransferError,
)
from chiasm.protocol.generation import ChoiceFinished, TokenEvent
from chiasm.protocol.wire import decode_fault
from chiasm.protocol.worker import EncodeRequest
from chiasm.routing.vllm.answers import EventReader, answer_of
from chiasm.routing.vllm.events import EventStream
from chiasm.routing.vllm.faults import translated
from chiasm.routing.vllm.handles import handles_of
from chiasm.routing.vllm.stats import stats_of
from chiasm.routing.vllm.versions.registry import version_for
from chiasm.routing.vllm.versions.v0_32 import Version032
from tests.unit.routing.vllm.served import chat, model, picture

VERSION = Version032()
ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
RED = {
    "choices": [
        {
            "index": 0,
            "delta": {"content": "red"},
            "logprobs": {
                "content": [
                    {"token": "red", "logprob": -0.5, "bytes": [114, 101, 100],
                     "top_logprobs": [{"token": "blue", "logprob": -1.5, "bytes": None}]}
                ]
            },
            "finish_reason": None,
            "token_ids": [7],
        }
    ]
}  # fmt: skip
END = {
    "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop", "stop_reason": "x", "token_ids": [2]}]
}
USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
    "metrics": {"time_to_first_token_ms": 20.0, "queue_time_ms": 5.0},
}


def events(*bodies, num_choices=1):
    reader = EventReader(num_choices, 16)
    answers = [answer_of(json.dumps(body).encode()) for body in bodies]
    found = [event for answer in answers for event in reader.events(answer)]
    return reader, found, reader.finished(answers[-1])


def test_a_choice_that_only_begins_is_no_event_so_that_a_failure_after_it_may_be_tried_again():
    _, found, _ = events(ROLE)
    assert found == []


def test_a_stream_becomes_tokens_an_end_and_counts():
    reader, (red, end, stop), finished = events(ROLE, RED, END, USAGE)
    assert isinstance(red, TokenEvent)
    assert (red.text, red.token_ids, red.logprobs[0].token_id, red.logprobs[0].logprob) == ("red", (7,), 7, -0.5)
    assert (red.logprobs[0].top[0].token, red.logprobs[0].top[0].token_bytes) == ("blue", b"blue")
    assert isinstance(end, TokenEvent)
    assert stop == ChoiceFinished(0, "stop", "x")
    counts = finished.usage
    assert (counts.num_prompt_tokens, counts.num_output_tokens, counts.num_cached_tokens) == (9, 2, 4)
    assert counts.num_visual_tokens == 16
    assert [(span.stage, span.start_s, span.end_s) for span in reader.spans] == [
        ("prefill_queue", 0.0, 0.005), ("prefill", 0.005, 0.02),
    ]  # fmt: skip


def test_completions_of_texts_have_their_own_form_of_logprobs():
    choice = {
        "index": 0, "text": " How", "finish_reason": "length", "token_ids": [5],
        "logprobs": {"text_offset": [0], "tokens": [" How"], "token_logprobs": [-0.25], "top_logprobs": [{" A": -2.0}]},
    }  # fmt: skip
    _, (token, end), _ = events({"choices": [choice]})
    assert (token.text, token.logprobs[0].token, token.logprobs[0].top[0].logprob) == (" How", " How", -2.0)
    assert end == ChoiceFinished(0, "length", None)


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_choice_that_vllm_gave_up_is_an_error(reason):
    with pytest.raises(EngineStepError, match=reason):
        events({"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": reason}]})


@pytest.mark.parametrize("body", ['{"choices": [{"index": 5, "text": "x"}]}', "[]", "nonsense", '{"choices": 3}'])
def test_what_is_no_answer_is_an_engine_error(body):
    with pytest.raises(EngineError):
        EventReader(1, 0).events(answer_of(body.encode()))


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("EngineCore encountered an issue. See stack trace (above) for the root cause.", EngineDeadError),
        ("Internal server error", EngineStepError),
    ],
)
def test_the_two_kinds_of_500_are_told_apart_in_bodies_and_in_streams(message, kind):
    body = json.dumps({"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}})
    assert type(decode_fault(500, body.encode())) is kind
    with pytest.raises(kind) as caught:
        answer_of(body.encode())
    assert type(caught.value) is kind


def test_a_failed_request_with_embeddings_is_taken_to_have_missed_them():
    body = json.dumps({"ec_transfer_params": entry([0], [1, 4, 4])}).encode()
    (handle,) = handles_of(VERSION.described(body), asked(), model(), 60.0)
    failed, dead = EngineStepError("Internal server error"), EngineDeadError("EngineCore encountered an issue")
    with_embeddings = chat(0, items=(picture(source=handle),))
    assert type(translated(failed, with_embeddings)) is HandleExpiredError
    assert translated(failed, chat(0, items=(picture(),))) is failed
    assert translated(dead, with_embeddings) is dead
    assert translated(failed, None) is failed


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequestError("This model's maximum context length is 4096 tokens."), ContextLengthError),
        (InvalidRequestError("Failed to load image: broken"), MediaDecodeError),
        (InvalidRequestError("At most 4 image(s)"), InvalidRequestError),
        (InvalidRequestError("The spool no longer holds it (transfer_failed)"), TransferError),
        (ModelNotFoundError("The model `x` does not exist."), EngineError),
    ],
)
def test_refusals_have_the_codes_of_ours(error, kind):
    assert type(translated(error, chat("x"))) is kind


def asked():
    return EncodeRequest(request_id="e", items=(picture(),))


def entry(places, grid, name=None):
    return {name or picture().identity: {"item_indices": places, "metadata": {"image_grid_thw": grid}}}


def described(entries):
    return VERSION.described(json.dumps({"ec_transfer_params": entries}).encode())


def test_a_handle_says_what_follows_from_the_pictures_own_header():
    (handle,) = handles_of(described(entry([0], [1, 4, 4])), asked(), model(), 60.0)
    found = handle.metadata
    assert (found.num_embeddings, found.shape, found.grid_thw, found.merge_size) == (4, (4, 24), (1, 4, 4), 2)
    assert (found.identity, found.model_revision, found.processor_revision) == (picture().identity, "r", "patches")


@pytest.mark.parametrize("grid", [[1, 2, 2], [1, 8, 8], [1, 4, 8]])
def test_a_grid_that_does_not_follow_from_the_picture_is_refused(grid):
    with pytest.raises(LayoutMismatchError, match="grid"):
        handles_of(described(entry([0], grid)), asked(), model(), 60.0)


@pytest.mark.parametrize("grid", [[0, 0, 0], [1, -2, -2], [1, 100_001, 1], [1, 16], [1.5, 16, 16], [[1, 4, 4]], "x"])
def test_a_grid_that_is_none_is_refused(grid):
    with pytest.raises(EngineError):
        described(entry([0], grid))


@pytest.mark.parametrize("entries", [{}, entry([1], [1, 4, 4]), entry([], [1, 4, 4]), entry([0], [1, 4, 4], "0" * 64)])
def test_an_answer_without_the_pictures_embedding_is_refused(entries):
    with pytest.raises(EngineError):
        handles_of(described(entries), asked(), model(), 60.0)


def test_a_model_whose_pictures_cannot_be_sized_is_served_whole():
    blind = model(preparer=None)
    assert blind.takes_images
    assert blind.num_visual_tokens(chat(0, items=(picture(),))) == 0
    with pytest.raises(EngineStartError, match="not known"):
        handles_of(described(entry([0], [1, 4, 4])), asked(), blind, 60.0)
    assert not model(preparer=None, config={"model_type": "qwen3"}).takes_images


def test_events_are_cut_out_whatever_the_pieces():
    stream = b'data: {"a": 1}\n\n: alive\n\ndata: {"b": 2}\n\ndata: [DONE]\n\ndata: {"c": 3}\n\n'
    for size in (1, 7, len(stream)):
        reader = EventStream()
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert [one for piece in pieces for one in reader.feed(piece)] == [b'{"a": 1}', b'{"b": 2}']


def test_stats_are_sums_or_one_ranks():
    page = "\n".join(
        [
            "# HELP vllm:num_requests_running x",
            'vllm:num_requests_running{engine="0",model_name="m"} 3.0',
            'vllm:num_requests_running{engine="1",model_name="m"} 2.0',
            'vllm:num_requests_waiting{engine="1",model_name="m"} 4.0',
            'vllm:prompt_tokens_total{engine="0",model_name="m"} 10.0',
            "python_info 1.0",
        ]
    )
    both = stats_of(page, is_healthy=True, num_open=0, max_running=8, rank=None)
    assert (both.num_running, both.num_waiting, both.num_free_slots) == (5, 4, 3)
    assert both.totals == {"prompt_tokens": 10.0}
    assert stats_of(page, is_healthy=True, num_open=0, max_running=8, rank=1).num_running == 2


def test_unknown_versions_are_refused_unless_the_operator_says_which_they_are_like():
    assert version_for("0.32.1+cpu").name == "0.32"
    with pytest.raises(EngineError, match=r"0\.40\.0") as caught:
        version_for("0.40.0")
    assert "assume_version" in caught.value.hint
    assert version_for("0.40.0", "0.32").name == "0.32"
    with pytest.raises(EngineError, match=r"nor is 0\.1"):
        version_for("0.40.0", "0.1")
