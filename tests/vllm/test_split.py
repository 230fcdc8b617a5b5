"""Encoders apart, layers split over two: servers that Chiasm starts, and the same ones attached to by another."""

import os
import re
import signal

import pytest

from chiasm.launch.vllm.fit import kv_bytes_per_token, kv_tokens
from tests.e2e.served import picture
from tests.vllm.crews import MARKS
from tests.vllm.gateways import PROMPTS, QUESTION, assert_same

pytestmark = MARKS
TENSOR_PARALLEL = 2


@pytest.fixture
def started(split):
    return split.started


@pytest.fixture
def attached(split):
    return split.attached


@pytest.fixture
def log(split):
    return split.log


@pytest.mark.parametrize("name", PROMPTS)
def test_the_answers_are_those_of_the_embedded_engine_cold_and_warm(started, embedded, name):
    expected = embedded.logprobs(PROMPTS[name])
    for _ in range(2):
        assert_same(started.logprobs(PROMPTS[name]), expected)


def test_the_encoder_encodes_and_the_other_server_never_does(started, log):
    before = log.encoded_by("encode-0")
    receipt = started.receipt((picture("green", shift=21), picture("red", shift=22), QUESTION))
    attempts = [(one["stage"], one["worker"], one["outcome"]) for one in receipt["route"]["attempts"]]
    assert attempts == [("encode", "encode-0", "ok"), ("prefill", "prefill-0", "ok")]
    assert receipt["route"]["path"] == "e-pd"
    assert receipt["stages_s"]["encode"] > 0
    assert log.sees_encoding_by("encode-0", after=before)
    assert log.encoded_by("prefill-0") == 0


def test_what_fits_is_what_was_worked_out_beforehand(started, log):
    said = [re.search(r"KV cache size: ([\d,]+) tokens, .* per request: ([\d.]+)x", line) for line in log.lines]
    tokens, requests = next(match.groups() for match in said if match)
    text = started.backend._crew.model.text
    worked_out = kv_tokens(TENSOR_PARALLEL * 2**30, kv_bytes_per_token(text, 4), "cpu")
    assert int(tokens.replace(",", "")) == worked_out
    assert float(requests) == worked_out / 4096


@pytest.mark.parametrize("name", ["one", "repeats", "interleaved"])
def test_a_fleet_that_runs_already_is_used_as_it_is(attached, embedded, name):
    assert_same(attached.logprobs(PROMPTS[name]), embedded.logprobs(PROMPTS[name]))


def test_an_attached_fleet_gets_media_in_the_calls(attached, log):
    receipt = attached.receipt((picture("blue", shift=31), QUESTION))
    assert [one["worker"] for one in receipt["route"]["attempts"]] == ["e", "pd"]
    assert log.encoded_by("prefill-0") == 0


@pytest.mark.vllm(is_last=True)
def test_without_its_encoder_the_request_is_still_answered_or_ends_with_a_code(started, attached, embedded):
    shown = picture("yellow", shift=41)
    os.killpg(started.backend.supervisor.pids["encode-0"], signal.SIGKILL)
    status, body = attached.chat((shown, QUESTION))
    assert (status, body["error"]["code"]) in ((503, "engine_dead"), (503, "embedding_unavailable"))
    assert_same(started.logprobs((shown, QUESTION)), embedded.logprobs((shown, QUESTION)))
    receipt = started.receipt((picture("yellow", shift=43), QUESTION))
    assert receipt["route"]["path"] == "local-encode"
    assert receipt["route"]["attempts"][-1]["worker"] == "prefill-0"
    assert attached.chat(("Hello",))[0] == 200
