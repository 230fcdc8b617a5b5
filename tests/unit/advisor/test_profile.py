"""Profiling a server whose costs are known: it answers with receipts that follow them exactly."""

import asyncio
from math import ceil

import msgspec
import pytest

from chiasm.advisor.profile.asking import Answered, Reading
from chiasm.advisor.profile.engine import EngineAsking
from chiasm.advisor.profile.fitting import fitted, fitted_steps, middle_mean
from chiasm.advisor.profile.runs import SIZES, Runs, profile_of
from chiasm.errors import (
    CapacityError,
    ContextLengthError,
    EngineError,
    InvalidSettingError,
    UnsupportedMediaError,
)
from chiasm.observability.receipt import Receipt, Span
from chiasm.simulator.calibration import Cost, Interference, load_calibration, save_calibration
from chiasm.simulator.cluster import aggregated
from chiasm.simulator.run import simulate
from chiasm.simulator.traffic import RequestClass, Traffic

PIXELS_PER_TOKEN = 784


class KnownServer:
    """Takes 5 ms for each request besides its stages; steps are 3 ms, 0.5 ms for each answer side by side, and 1 µs for
    each token of context of all of them.
    """

    delayed_s = 0.0  # of an answer by the start of another
    picture_s = 0.0  # of a picture besides its stages

    def __init__(self):
        self.texts = []
        self.num_open = 0

    async def ask(self, text, *, num_output_tokens, picture=None):
        assert text not in self.texts, "every text is new"
        self.texts.append(text)
        self.num_open += 1
        await asyncio.sleep(0)
        company = self.num_open
        await asyncio.sleep(0)
        self.num_open -= 1
        found = receipt(len(text.split()), company, num_output_tokens, picture)
        e2e_s = found.ttft_s + found.decode_s + self.delayed_s * (company - 1)
        besides_s = 0.0 if picture is None else self.picture_s
        return Answered(receipt=found, ttft_s=found.ttft_s + besides_s, e2e_s=e2e_s + besides_s)


def receipt(num_words, company, num_output_tokens, picture):
    num_visual = 0 if picture is None else _pixels(picture) // PIXELS_PER_TOKEN
    num_tokens = num_words + num_visual
    spans, now_s = [], 0.005
    stages = [("prefill", 0.004 * ceil(num_tokens / 512) + 1e-4 * num_tokens + 3e-8 * num_tokens**2)]
    if picture is not None:
        stages = [
            ("decode_media", 0.001 + 1e-8 * _pixels(picture)),
            ("encode", 0.002 + 2e-4 * num_visual + 1e-7 * num_visual**2),
            ("transfer", 0.001 + 1e-6 * num_visual),
            *stages,
        ]
    for stage, seconds in stages:
        spans.append(Span(stage, now_s, now_s + seconds))
        now_s += seconds
    num_steps = num_output_tokens - 1
    context = company * (num_tokens + num_output_tokens / 2)
    decode_s = num_steps * (0.003 + 0.0005 * company + 1e-6 * context)
    return Receipt(
        request_id="r", model="m", outcome="finished", ttft_s=now_s, e2e_s=now_s, stages_s={}, unaccounted_s=0.0,
        decode_s=decode_s, num_prompt_tokens=num_tokens, num_visual_tokens=num_visual,
        num_output_tokens=num_output_tokens, spans=tuple(spans),
    )  # fmt: skip


def _pixels(picture):
    from io import BytesIO

    from PIL import Image

    width, height = Image.open(BytesIO(picture)).size
    return width * height


async def test_the_costs_of_a_known_server_are_found():
    runs = Runs(KnownServer(), 1, lambda *_: None)
    await runs.run()
    found = profile_of(runs, "test", max_running=7)
    costs = found.calibration
    assert costs.request.fixed_s == pytest.approx(0.005)
    assert costs.prefill.fixed_s == pytest.approx(0.004, rel=1e-3)
    assert costs.prefill.per_unit_s == pytest.approx(1e-4, rel=1e-3)
    assert costs.media.per_unit_s == pytest.approx(1e-8, rel=1e-3)
    assert costs.prefill_quadratic_s == pytest.approx(3e-8, rel=1e-3)
    assert costs.encode.per_unit_s == pytest.approx(2e-4, rel=1e-3)
    assert costs.encode_quadratic_s == pytest.approx(1e-7, rel=1e-3)
    assert costs.sharing is None, "a server whose processes are not to be seen"
    assert costs.transfer.fixed_s == pytest.approx(0.001, rel=1e-2)
    assert costs.step.fixed_s == pytest.approx(0.003, rel=1e-2)
    assert costs.step.per_unit_s == pytest.approx(0.0005, rel=1e-2)
    assert costs.context_s == pytest.approx(1e-6, rel=0.1)
    assert costs.max_running == 7
    assert costs.visual_tokens.at(448 * 448) == pytest.approx(256, rel=0.01)
    assert all(fit.error < 1e-3 for fit in found.fits.values())
    assert "kv_transfer" not in found.fits


class BusyServer(KnownServer):
    """What a request costs besides its steps falls into the answers beside it."""

    delayed_s = 0.02


async def test_the_start_of_answers_beside_each_other_is_no_part_of_their_steps():
    runs = Runs(BusyServer(), 1, lambda *_: None)
    await runs.run()
    step = profile_of(runs, "test").calibration.step
    assert (step.fixed_s, step.per_unit_s) == (pytest.approx(0.003, rel=1e-2), pytest.approx(0.0005, rel=1e-2))


class KeepingServer(KnownServer):
    """Keeps a prompt after its first token, 2 ms and 3 µs for each of its tokens."""

    async def ask(self, text, *, num_output_tokens, picture=None):
        answered = await super().ask(text, num_output_tokens=num_output_tokens, picture=picture)
        after_s = (0.002 + 3e-6 * answered.receipt.num_prompt_tokens) * (num_output_tokens > 1)
        return msgspec.structs.replace(answered, e2e_s=answered.e2e_s + after_s)


@pytest.mark.parametrize(("server", "cost"), [(KnownServer, (0.0, 0.0)), (KeepingServer, (0.002, 3e-6))])
async def test_what_comes_once_after_the_first_token_is_told_from_steps(server, cost):
    runs = Runs(server(), 1, lambda *_: None)
    await runs.run()
    found = profile_of(runs, "test").calibration
    assert found.after_prompt.fixed_s == pytest.approx(cost[0], abs=1e-4)
    assert found.after_prompt.per_unit_s == pytest.approx(cost[1], abs=1e-7)
    assert found.step.fixed_s == pytest.approx(0.003, rel=1e-2)


class VaryingServer(KnownServer):
    """So many words are some tokens more or fewer, as texts have it; steps go at a pace of their own."""

    pace = 1.0

    async def ask(self, text, *, num_output_tokens, picture=None):
        answered = await super().ask(text, num_output_tokens=num_output_tokens, picture=picture)
        found = answered.receipt
        told = msgspec.structs.replace(found, num_prompt_tokens=found.num_prompt_tokens + len(self.texts) % 5)
        return msgspec.structs.replace(answered, receipt=told, e2e_s=found.ttft_s + found.decode_s * self.pace)


async def test_one_round_of_three_that_went_wrong_is_left_out_of_steps():
    server = VaryingServer()
    runs = Runs(server, 3, lambda *_: None)
    for server.pace in (1.0, 0.01, 1.0):
        await runs.round()
    costs = profile_of(runs, "test").calibration
    assert costs.step.fixed_s == pytest.approx(0.003, rel=0.05)
    assert costs.step.per_unit_s == pytest.approx(0.0005, rel=0.05)
    assert costs.context_s == pytest.approx(1e-6, rel=0.1)


class HastyServer(KnownServer):
    """Long answers take as long as short ones."""

    async def ask(self, text, *, num_output_tokens, picture=None):
        answered = await super().ask(text, num_output_tokens=num_output_tokens, picture=picture)
        return msgspec.structs.replace(answered, e2e_s=1.0)


async def test_steps_that_cannot_be_timed_are_an_error_that_says_so():
    runs = Runs(HastyServer(), 1, lambda *_: None)
    await runs.run()
    with pytest.raises(InvalidSettingError, match="No step could be timed"):
        profile_of(runs, "test")


class ShortServer(KnownServer):
    """Its context ends at a thousand tokens."""

    async def ask(self, text, *, num_output_tokens, picture=None):
        if len(text.split()) > 1000:
            raise ContextLengthError("too long")
        return await super().ask(text, num_output_tokens=num_output_tokens, picture=picture)


async def test_a_server_of_short_contexts_is_profiled_up_to_them():
    told = []
    runs = Runs(ShortServer(), 1, lambda *now: told.append(now))
    await runs.run()
    assert profile_of(runs, "test").calibration.prefill.fixed_s == pytest.approx(0.004, rel=1e-3)
    assert told[-1][1] < told[-1][2]


class TextServer(KnownServer):
    """Its model takes no pictures."""

    num_refused = 0

    async def ask(self, text, *, num_output_tokens, picture=None):
        if picture is not None:
            self.num_refused += 1
            raise UnsupportedMediaError("Media item 0: texts takes no pictures")
        return await super().ask(text, num_output_tokens=num_output_tokens, picture=picture)


async def test_a_server_that_takes_no_pictures_is_profiled_for_texts(tmp_path):
    server, told = TextServer(), []
    runs = Runs(server, 2, lambda *now: told.append(now))
    await runs.run()
    assert server.num_refused == 1, "it is not asked again"
    assert all(num_done <= num_all for _, num_done, num_all in told)
    found = profile_of(runs, "test")
    assert found.calibration.prefill.fixed_s == pytest.approx(0.004, rel=1e-3)
    assert found.calibration.step.fixed_s == pytest.approx(0.003, rel=1e-2)
    assert set(found.fits) == {"prefill", "step"}
    assert not found.takes_pictures
    save_calibration(found.calibration, tmp_path / "costs.json")
    known = load_calibration(tmp_path / "costs.json")
    texts = RequestClass(text_tokens=64, output_tokens=8)
    assert simulate(aggregated(1), Traffic(classes=(texts,), num_requests=5), known).record.ttft_s.size == 5
    pictures = RequestClass(num_images=1, num_pixels=448 * 448, visual_tokens=256, text_tokens=8, output_tokens=8)
    with pytest.raises(InvalidSettingError, match="does not say what they cost"):
        simulate(aggregated(1), Traffic(classes=(pictures,), num_requests=5), known)


class UndividedServer(KnownServer):
    """Its engine encodes pictures on the way and does not tell that from the prompt, as vLLM's does."""

    async def ask(self, text, *, num_output_tokens, picture=None):
        answered = await super().ask(text, num_output_tokens=num_output_tokens, picture=picture)
        spans = (Span("prefill", answered.receipt.spans[0].start_s, answered.receipt.spans[-1].end_s),)
        return msgspec.structs.replace(answered, receipt=msgspec.structs.replace(answered.receipt, spans=spans))


async def test_a_server_that_does_not_tell_encoding_from_prompts_is_not_taken_for_one_without_pictures():
    runs = Runs(UndividedServer(), 1, lambda *_: None)
    await runs.run()
    found = profile_of(runs, "test")
    assert found.takes_pictures
    assert "encode" not in found.fits
    assert not found.calibration.knows_pictures


class SilentServer(KnownServer):
    """Its engine does not say what it did when, as some versions of vLLM do not."""

    async def ask(self, text, *, num_output_tokens, picture=None):
        answered = await super().ask(text, num_output_tokens=num_output_tokens, picture=picture)
        return msgspec.structs.replace(answered, receipt=msgspec.structs.replace(answered.receipt, spans=()))


async def test_receipts_without_times_are_an_error_that_says_so():
    with pytest.raises(InvalidSettingError, match="do not say how long prompts took"):
        await Runs(SilentServer(), 1, lambda *_: None).run()


async def test_what_a_picture_takes_besides_its_stages_is_told_apart_from_what_a_text_does():
    server = KnownServer()
    server.picture_s = 0.003
    runs = Runs(server, 1, lambda *_: None)
    await runs.run()
    request = profile_of(runs, "test").calibration.request
    assert (request.fixed_s, request.per_unit_s) == pytest.approx((0.005, 0.003))


async def test_progress_counts_all_questions():
    told = []
    runs = Runs(KnownServer(), 2, lambda *told_now: told.append(told_now))
    await runs.run()
    assert told[0][1] == 0
    assert len(told) == told[-1][2]


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([7.0], 7.0),
        ([1.0, 2.0], 1.5),
        ([1.0, 2.0, 99.0], 2.0),  # a hiccup counts for nothing
        ([1.0, 1.0, 1.0, 2.0, 2.0, 2.0], 1.5),  # where the same work takes one of two times, both count
        ([2.0, 1.0, 1.0, 2.0, 1.0, 99.0, 2.0, 1.0], 1.5),
    ],
)
def test_what_usually_happens_is_the_mean_of_the_middle(values, mean):
    assert middle_mean(values) == mean


def test_lines_are_fitted_through_middle_means_and_never_fall_below_nothing():
    assert fitted([(1.0, 3.0), (2.0, 5.0), (2.0, 5.0), (2.0, 99.0)]).cost == Cost(
        fixed_s=pytest.approx(1.0), per_unit_s=pytest.approx(2.0)
    )
    assert fitted([(10.0, 2.0), (20.0, 1.0)]).cost.per_unit_s == 0.0
    through_zero = fitted([(10.0, 1.0), (20.0, 3.0)]).cost
    assert through_zero.fixed_s == 0.0
    assert 0.1 <= through_zero.per_unit_s <= 0.15
    assert fitted([(10.0, 2.0)]).cost == Cost(fixed_s=2.0)
    assert fitted([(1.0, 1.0), (2.0, 3.0), (3.0, 2.0)]).error > 0.1


def read(*lines):
    reading = Reading(10.0)
    for number, line in enumerate(lines):
        reading.line(line, 10.5 + number)
    return reading.answered()


def test_a_streamed_answer_is_timed_to_its_first_text_and_to_its_end():
    end = msgspec.json.encode({"choices": [], "chiasm": {"receipt": receipt(4, 1, 3, None)}})
    text = b'data: {"choices": [{"delta": {"content": "a"}}]}\n'
    found = read(
        b'data: {"choices": [{"delta": {"role": "assistant"}}]}', b"\n", text, text, b"data: " + end, b"data: [DONE]"
    )
    assert (found.ttft_s, found.e2e_s) == (2.5, 5.5)
    assert read(b"data: " + end).ttft_s == pytest.approx(found.receipt.ttft_s)  # no text


def test_steps_are_told_apart_from_their_context():
    points = [(n, 100 * n, 0.001 + 0.0002 * n + 1e-6 * 100 * n) for n in (1, 2, 4)] + [(1, 900, 0.0021)]
    found = fitted_steps(points)
    assert (found.cost.fixed_s, found.cost.per_unit_s) == (pytest.approx(0.001), pytest.approx(0.0002))
    assert found.context_s == pytest.approx(1e-6)
    assert fitted_steps([(1, 100, 0.002)]).cost.fixed_s == pytest.approx(0.002)


def test_what_is_no_receipt_is_said():
    with pytest.raises(InvalidSettingError, match="no receipts"):
        read(b'data: {"choices": []}')
    with pytest.raises(EngineError, match="unreadable"):
        read(b"data: <html>")
    with pytest.raises(CapacityError, match="too many"):
        read(b'data: {"error": {"code": "overloaded", "message": "too many"}}')


def test_steps_of_workers_beside_each_other_alone_say_nothing():
    runs = Runs(KnownServer(), 1, lambda *_: None)
    runs.steps._crowded.append((1, 100, 0.004))
    assert runs.steps.points == []
    runs.steps._alone.append((1, 100, 0.002))
    assert runs.steps.points == [(1, 100, 0.002), (1, 100, 0.002)], "what they took from each other is taken out"


class KnownEngine:
    """An engine in this process with the costs of `KnownServer`."""

    def __init__(self):
        self._server = KnownServer()
        self.asked = []

    async def achat(self, messages, **options):
        (message,) = messages
        *pictures, text = message["content"]
        self.asked.append(options)
        picture = pictures[0]["image"] if pictures else None
        return await self._server.ask(text["text"], num_output_tokens=options["max_tokens"], picture=picture)


async def test_an_engine_without_a_server_can_be_profiled():
    engine = KnownEngine()
    runs = Runs(EngineAsking(engine), 1, lambda *_: None)
    await runs.round()
    assert set(runs.points) >= {"prefill", "media", "encode"}
    assert runs.overheads_s == pytest.approx([0.005] * len(runs.overheads_s))
    assert all(one["min_tokens"] == one["max_tokens"] and one["ignore_eos"] for one in engine.asked)
    assert all(one["stream"] for one in engine.asked), "steps beside pictures are what comes after the first token"


async def test_the_file_says_how_sure_its_numbers_are(tmp_path):
    runs = Runs(KnownServer(), 2, lambda *_: None)
    await runs.run()
    found = profile_of(runs, "test")
    save_calibration(found.calibration, tmp_path / "costs.json")
    evidence = load_calibration(tmp_path / "costs.json").evidence
    assert {"prefill", "media", "encode", "transfer", "step"} <= set(evidence)
    assert evidence["prefill"].num_points == found.fits["prefill"].num_points > 0
    assert evidence["media"].error == pytest.approx(0.0, abs=1e-6)
    assert [units for units, _ in evidence["media"].residuals] == [width * height for width, height in SIZES]
    assert all(abs(off) < 1e-3 for _, off in evidence["media"].residuals)
    intervals = {name: one.interval for name, one in evidence.items() if one.interval is not None}
    assert set(intervals) == {name for name in Interference.__struct_fields__ if name in found.beside.rounds}
