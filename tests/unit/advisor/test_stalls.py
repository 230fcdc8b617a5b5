"""A server whose answers stand still while texts come: receipts say by how much."""

import asyncio

import pytest

from chiasm.advisor.profile.asking import Answered
from chiasm.advisor.profile.stalls import NUM_ANSWERS, NUM_STEPS, StallRuns
from chiasm.observability.receipt import Attempt, Receipt, Route, Span

STEP_S, PREFILL_S, STALL_S = 0.0005, 0.004, 0.003
NUM_BESIDE = 5


class Server:
    """Answers end when `NUM_BESIDE` texts have come beside them."""

    def __init__(self, *, worker="worker 1", other="worker 1"):
        self._workers = (worker, other)
        self._num_answers = self._num_beside = 0
        self._enough = asyncio.Event()

    async def ask(self, text, *, num_output_tokens, picture=None):
        assert picture is None
        if num_output_tokens == 1:
            return await self._text()
        self._num_answers += 1
        longer_s = 0.0
        if self._num_answers > NUM_ANSWERS:
            await self._enough.wait()
            longer_s = NUM_BESIDE * (PREFILL_S + STALL_S)
        return answered(self._workers[self._num_answers % 2], (NUM_STEPS - 1) * STEP_S + longer_s, num_output_tokens)

    async def _text(self):
        if self._num_answers > NUM_ANSWERS:
            self._num_beside += 1
            if self._num_beside == NUM_BESIDE + 1:  # the end of the answers comes upon it
                self._enough.set()
                await asyncio.sleep(0.01)
        return answered(self._workers[0], 0.0, 1)


def answered(worker, decode_s, num_output_tokens):
    route = Route(
        path="agg", policy="p", reason="r", attempts=(Attempt(stage="generate", worker=worker, outcome="ok"),)
    )
    found = Receipt(
        request_id="r", model="m", outcome="finished", ttft_s=PREFILL_S, e2e_s=PREFILL_S + decode_s, stages_s={},
        unaccounted_s=0.0, decode_s=decode_s, num_prompt_tokens=9, num_output_tokens=num_output_tokens,
        spans=(Span("prefill", 0.0, PREFILL_S),), route=route,
    )  # fmt: skip
    return Answered(receipt=found, ttft_s=found.ttft_s, e2e_s=found.e2e_s)


async def test_what_answers_take_longer_beside_texts_is_their_prompts_and_the_stall():
    runs = StallRuns(Server(), lambda length: f"text of {length}")
    await runs.run()
    shared_out = NUM_BESIDE / (NUM_BESIDE + 0.5)  # half of a text counts that the answers' end came upon
    assert runs.seconds == [pytest.approx((PREFILL_S + STALL_S) * shared_out - PREFILL_S)]


async def test_a_server_that_spreads_requests_over_workers_tells_nothing():
    runs = StallRuns(Server(other="worker 2"), lambda length: f"text of {length}")
    await runs.run()
    assert runs.seconds == []
