"""A server whose interference is known: receipts say what it did alone and in company."""

import asyncio

import msgspec
import pytest

from chiasm.advisor.profile.asking import Answered
from chiasm.advisor.profile.interference import FEWEST_STEPS, NUM_STEPS, InterferenceRuns, Seen
from chiasm.observability.receipt import Attempt, Receipt, Route, Span

MEDIA_S, ENCODE_S, PREFILL_S, STEP_S = 0.010, 0.020, 0.004, 0.00025
NUM_BESIDE = 3


class Server:
    """Answers end when `NUM_BESIDE` pictures have come beside them; a text waits for `wait_s` beside a picture."""

    def __init__(self, *, is_apart, media=0.0, encode=0.0, step=0.0, prefill=0.0, wait_s=0.0):
        self._is_apart = is_apart
        self._slower = {"media": media, "encode": encode, "step": step, "prefill": prefill}
        self._wait_s = wait_s
        self._num_rounds = 0
        self._enough = asyncio.Event()
        self._num_decoding = self._num_pictures = self._num_beside = 0
        self.asked_for = set()

    async def ask(self, text, *, num_output_tokens, picture=None):
        found = await self._asked(num_output_tokens, picture)
        return Answered(receipt=found, ttft_s=found.ttft_s, e2e_s=found.ttft_s + found.decode_s)

    async def _asked(self, num_output_tokens, picture):
        if picture is not None:
            return await self._picture()
        if num_output_tokens > 1:
            self.asked_for.add(num_output_tokens)
            return await self._answer(num_output_tokens)
        beside = self._num_pictures > 0
        return receipt({"prefill": PREFILL_S * (1 + self._slower["prefill"] * beside)}, waited_s=self._wait_s * beside)

    async def _picture(self):
        self._num_pictures += 1
        beside = self._num_decoding > 0
        self._num_beside += beside
        if self._num_beside == NUM_BESIDE:
            self._enough.set()
        await asyncio.sleep(0.03 if not beside else 0)
        self._num_pictures -= 1
        return receipt(
            {
                "decode_media": MEDIA_S * (1 + self._slower["media"] * beside),
                "encode": ENCODE_S * (1 + self._slower["encode"] * beside),
                "transfer": 0.001 * self._is_apart,
                "prefill": PREFILL_S,
            }
        )

    async def _answer(self, num_steps):
        self._num_rounds += 1
        alone = self._num_rounds <= 2
        self._num_decoding += not alone
        decode_s = STEP_S * (num_steps - 1)
        if not alone:
            await self._enough.wait()
            beside_s = NUM_BESIDE * (ENCODE_S * (1 + self._slower["encode"]) if self._is_apart else
                                     MEDIA_S * (1 + self._slower["media"]))  # fmt: skip
            between_s = NUM_BESIDE * (PREFILL_S + (0.0 if self._is_apart else ENCODE_S))
            slowed_s = decode_s + between_s  # steps are slower in the share of the whole time with something beside
            for _ in range(50):
                slowed_s = between_s + decode_s * (1 + self._slower["step"] * min(beside_s / slowed_s, 1.0))
            decode_s = slowed_s
            self._num_decoding -= 1
        return receipt({"prefill": PREFILL_S}, decode_s=decode_s, num_output_tokens=num_steps)


def receipt(stages, *, waited_s=0.0, decode_s=0.0, num_output_tokens=1):
    now_s, spans = waited_s, []
    for stage, seconds in stages.items():
        if seconds:
            spans.append(Span(stage, now_s, now_s + seconds))
            now_s += seconds
    return Receipt(
        request_id="r", model="m", outcome="finished", ttft_s=now_s, e2e_s=now_s + decode_s,
        stages_s={"prefill_queue": waited_s}, unaccounted_s=0.0, decode_s=decode_s, num_prompt_tokens=9,
        num_output_tokens=num_output_tokens, spans=tuple(spans),
    )  # fmt: skip


async def seen(**known):
    runs = InterferenceRuns(Server(**known), lambda length: f"text of {length}")
    await runs.run()
    return runs.seen


async def test_in_one_process_media_work_and_steps_slow_each_other_down():
    found = (await seen(is_apart=False, media=0.5, step=0.8)).interference
    assert found.media_by_engine == pytest.approx(0.5)
    assert found.engine_by_media == pytest.approx(0.8, rel=0.01)
    assert found.step_by_encode == found.encode_by_engine == found.prefill_by_encoder == 0.0


async def test_apart_on_one_device_encoders_and_engines_do():
    found = (await seen(is_apart=True, encode=0.25, step=0.6, prefill=0.3)).interference
    assert found.encode_by_engine == pytest.approx(0.25)
    assert found.step_by_encode == pytest.approx(0.6, rel=0.01)
    assert found.prefill_by_encoder == pytest.approx(0.3)
    assert found.media_by_engine == found.engine_by_media == 0.0


@pytest.mark.parametrize(("step_s", "num_steps"), [(0.001, NUM_STEPS), (0.1, 200), (1.0, FEWEST_STEPS)])
async def test_where_steps_are_slow_answers_have_fewer_and_tell_the_same(step_s, num_steps):
    """Else an answer would not end before the client gives up."""
    server = Server(is_apart=False, media=0.5, step=0.8)
    runs = InterferenceRuns(server, lambda length: f"text of {length}")
    await runs.run(step_s)
    assert server.asked_for == {num_steps}
    assert runs.seen.interference.engine_by_media == pytest.approx(0.8, rel=0.01)


@pytest.mark.parametrize(("wait_s", "parts"), [(ENCODE_S / 2, 1), (ENCODE_S / 16, 8), (0.0, 64)])
async def test_parts_of_a_batch_follow_from_what_texts_wait_for(wait_s, parts):
    assert (await seen(is_apart=False, wait_s=wait_s)).encode_parts == parts


async def test_what_is_quicker_in_company_counts_as_no_interference():
    assert (await seen(is_apart=False, media=-0.2, step=-0.1)).interference.media_by_engine == 0.0


def test_rounds_that_disagree_say_that_nothing_is_measurable():
    noisy = Seen(rounds={"engine_by_media": (-6.56, 0.4, 3.0), "media_by_engine": (0.5, 0.52, 0.55)})
    assert not noisy.slowdown("engine_by_media").is_measurable
    assert noisy.slowdown("engine_by_media").low == -1.0, "nothing takes less than no time"
    assert noisy.interference.engine_by_media == 0.0
    assert noisy.slowdown("media_by_engine").is_measurable
    assert noisy.interference.media_by_engine == pytest.approx(0.52)


def test_a_single_nonsense_round_is_not_measurable_either():
    assert not Seen(rounds={"engine_by_media": (-6.56,)}).slowdown("engine_by_media").is_measurable


async def test_work_that_went_to_several_workers_says_nothing_of_one():
    runs = InterferenceRuns(SpreadServer(is_apart=False, media=0.5, step=0.8), lambda length: f"text of {length}")
    await runs.run()
    assert runs.seen.rounds == {}
    assert runs.seen.num_workers == 2
    assert runs.seen.encode_parts == 1


class SpreadServer(Server):
    """Pictures go to another worker than answers."""

    async def _asked(self, num_output_tokens, picture):
        found = await super()._asked(num_output_tokens, picture)
        worker = "a" if picture is None else "b"
        route = Route(path="p", policy="x", attempts=(Attempt(stage="generate", worker=worker, outcome="ok"),))
        return msgspec.structs.replace(found, route=route)
