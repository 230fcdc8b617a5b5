"""Receipts: every instant before the first token is charged once, and the sum is the time to first token."""

import time

import pytest

from chiasm.gateway.exchange.account import Account
from chiasm.observability.receipt import Span
from chiasm.protocol.generation import RequestFinished, Usage


def usage(**counts):
    return Usage(**({"num_prompt_tokens": 5, "num_output_tokens": 2} | counts))


def sums_up(receipt):
    total = sum(receipt.stages_s.values()) + receipt.unaccounted_s
    return total == pytest.approx(receipt.ttft_s if receipt.ttft_s is not None else receipt.e2e_s, abs=1e-9)


def test_worker_spans_are_moved_to_the_requests_clock():
    account = Account("r", "m")
    with account.clock.stage("queue"):
        time.sleep(0.01)
    account.dispatched()
    time.sleep(0.03)
    account.first_token()
    account.add([RequestFinished(usage(), (Span("prompt", 0.0, 0.01), Span("prefill", 0.01, 0.02)))])
    receipt = account.receipt("finished")
    prompt = next(span for span in receipt.spans if span.stage == "prompt")
    assert prompt.start_s >= 0.01
    assert receipt.stages_s["prompt"] == pytest.approx(0.01)
    assert receipt.stages_s["prefill"] == pytest.approx(0.01)
    assert receipt.stages_s["queue"] >= 0.01
    assert receipt.unaccounted_s >= 0.005
    assert sums_up(receipt)


def test_overlapping_spans_are_charged_once():
    account = Account("r", "m")
    account.clock.spans += [Span("fetch", 0.0, 0.6, 0), Span("fetch", 0.0, 0.9, 1), Span("encode", 0.5, 0.8, 0)]
    account._ttft_s = 1.0
    receipt = account.receipt("finished")
    assert receipt.stages_s == {"fetch": pytest.approx(0.6), "encode": pytest.approx(0.3)}
    assert receipt.unaccounted_s == pytest.approx(0.1)


def test_the_first_token_of_a_stream_is_noted_once():
    account = Account("r", "m")
    account.first_token()
    first = account.receipt("finished").ttft_s
    account.first_token()
    assert account.receipt("finished").ttft_s == first


def test_a_whole_response_has_its_first_token_when_the_prompt_was_computed():
    account = Account("r", "m")
    account.dispatched()
    time.sleep(0.03)
    account.add([RequestFinished(usage(), (Span("prefill", 0.0, 0.01),))])
    receipt = account.receipt("finished")
    assert 0.01 <= receipt.ttft_s < 0.02
    assert receipt.decode_s >= 0.015
    assert receipt.ttft_s + receipt.decode_s == pytest.approx(receipt.e2e_s)
    assert sums_up(receipt)


def test_the_first_token_is_never_later_than_now():
    account = Account("r", "m")
    account.add([RequestFinished(usage(), (Span("prefill", 0.0, 100.0),))])
    receipt = account.receipt("finished")
    assert receipt.ttft_s <= receipt.e2e_s
    assert sums_up(receipt)


def test_without_a_first_token_the_whole_time_is_charged():
    account = Account("r", "m")
    with account.clock.stage("fetch"):
        time.sleep(0.01)
    receipt = account.receipt("media_fetch_failed")
    assert receipt.ttft_s is None
    assert receipt.outcome == "media_fetch_failed"
    assert receipt.stages_s["fetch"] >= 0.01
    assert receipt.decode_s == 0
    assert sums_up(receipt)


def test_counts_of_several_generations_add_up():
    account = Account("r", "m")
    account.num_items = 2
    account.add([RequestFinished(usage(num_cached_tokens=1, num_visual_tokens=3, num_cached_embeddings=1))])
    account.add([RequestFinished(usage(num_cached_tokens=2))])
    receipt = account.receipt("finished")
    assert (receipt.num_prompt_tokens, receipt.num_output_tokens, receipt.num_cached_tokens) == (10, 4, 3)
    assert (receipt.num_visual_tokens, receipt.num_cached_embeddings, receipt.num_items) == (3, 1, 2)
