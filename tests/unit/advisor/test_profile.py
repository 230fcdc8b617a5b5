"""Profiling a server whose costs are known: it answers with receipts that follow them exactly."""

import asyncio

import pytest

from chiasm.advisor.profile.asking import _receipt
from chiasm.advisor.profile.fitting import fitted
from chiasm.advisor.profile.runs import Runs, profile_of
from chiasm.errors import CapacityError, EngineError, InvalidSettingError
from chiasm.observability.receipt import Receipt, Span
from chiasm.simulator.calibration import Cost

PIXELS_PER_TOKEN = 784


class KnownServer:
    """Takes 5 ms for each request besides its stages; steps are 3 ms and 0.5 ms for each answer side by side."""

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
        return receipt(len(text.split()), company, num_output_tokens, picture)


def receipt(num_words, company, num_output_tokens, picture):
    num_visual = 0 if picture is None else _pixels(picture) // PIXELS_PER_TOKEN
    num_tokens = num_words + num_visual
    spans, now_s = [], 0.005
    stages = [("prefill", 0.004 + 1e-4 * num_tokens)]
    if picture is not None:
        stages = [
            ("decode_media", 0.001 + 1e-8 * _pixels(picture)),
            ("encode", 0.002 + 2e-4 * num_visual),
            ("transfer", 0.001 + 1e-6 * num_visual),
            *stages,
        ]
    for stage, seconds in stages:
        spans.append(Span(stage, now_s, now_s + seconds))
        now_s += seconds
    step_s = 0.003 + 0.0005 * company + 1e-6 * num_tokens
    return Receipt(
        request_id="r", model="m", outcome="finished", ttft_s=now_s, e2e_s=now_s, stages_s={}, unaccounted_s=0.0,
        decode_s=step_s * (num_output_tokens - 1), num_prompt_tokens=num_tokens, num_visual_tokens=num_visual,
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
    assert costs.encode.per_unit_s == pytest.approx(2e-4, rel=1e-3)
    assert costs.transfer.fixed_s == pytest.approx(0.001, rel=1e-2)
    assert costs.step.per_unit_s == pytest.approx(0.0005, rel=1e-2)
    assert costs.context_s == pytest.approx(1e-6, rel=0.1)
    assert costs.max_running == 7
    assert all(fit.error < 1e-3 for fit in found.fits.values())
    assert "kv_transfer" not in found.fits


async def test_progress_counts_all_questions():
    told = []
    runs = Runs(KnownServer(), 2, lambda *told_now: told.append(told_now))
    await runs.run()
    assert told[0][1] == 0
    assert len(told) == told[-1][2]


def test_lines_are_fitted_through_medians_and_never_fall_below_nothing():
    assert fitted([(1.0, 3.0), (2.0, 5.0), (2.0, 5.0), (2.0, 99.0)]).cost == Cost(
        fixed_s=pytest.approx(1.0), per_unit_s=pytest.approx(2.0)
    )
    assert fitted([(10.0, 2.0), (20.0, 1.0)]).cost.per_unit_s == 0.0
    through_zero = fitted([(10.0, 1.0), (20.0, 3.0)]).cost
    assert through_zero.fixed_s == 0.0
    assert 0.1 <= through_zero.per_unit_s <= 0.15
    assert fitted([(10.0, 2.0)]).cost == Cost(fixed_s=2.0)
    assert fitted([(1.0, 1.0), (2.0, 3.0), (3.0, 2.0)]).error > 0.1


def test_what_is_no_receipt_is_said():
    with pytest.raises(InvalidSettingError, match="no receipts"):
        _receipt(200, b'{"choices": []}')
    with pytest.raises(EngineError, match="unreadable"):
        _receipt(200, b"<html>")
    with pytest.raises(EngineError, match="status 502"):
        _receipt(502, b"{}")
    with pytest.raises(CapacityError, match="too many"):
        _receipt(429, b'{"error": {"code": "overloaded", "message": "too many"}}')
