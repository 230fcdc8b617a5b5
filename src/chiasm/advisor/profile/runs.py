"""The micro-runs: what is asked, and what each answer's receipt is read for."""

import asyncio
import random
from collections.abc import Callable, Sequence
from secrets import token_hex
from statistics import median

import msgspec

from chiasm.advisor.profile.asking import Asking
from chiasm.advisor.profile.fitting import Fit, Point, fitted
from chiasm.advisor.profile.interference import InterferenceRuns, Seen
from chiasm.bench.workload.pictures import picture
from chiasm.bench.workload.text import words
from chiasm.observability.receipt import Receipt
from chiasm.routing.costs.spans import busy_s
from chiasm.simulator.calibration import Calibration, Cost

TEXTS = (16, 64, 128, 256, 400)
"""Words of prompts; all below the tokens of one step."""
SIZES = ((224, 224), (448, 448), (640, 480), (896, 672), (1120, 840))
"""Of pictures, in pixels."""
COMPANY = (1, 2, 4, 8)
"""Answers side by side."""
_NUM_STEPS = 48
_MEDIA = ("decode_media", "prepare")
_WORK = (*_MEDIA, "encode", "transfer", "prefill", "kv_transfer")

OnRun = Callable[[str, int, int], None]
"""Told what is run, how many questions are done, and of how many."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """A calibration, how well each of its lines fits, and what company came to; what was not seen is left out."""

    calibration: Calibration
    fits: dict[str, Fit]
    beside: Seen


class Runs:
    """Asks, and collects points by stage."""

    def __init__(self, asking: Asking, num_repeats: int, on_run: OnRun) -> None:
        self._asking = asking
        self._num_repeats = num_repeats
        self._on_run = on_run
        self._num_done = 0
        self._num_all = num_repeats * (len(TEXTS) + len(SIZES) + sum(COMPANY) + 2) + 1
        self._interference = InterferenceRuns(asking, self._fresh)
        self._random = random.Random(token_hex(8))  # noqa: S311 - no cache may know these texts
        self.points: dict[str, list[Point]] = {}
        self.overheads_s: list[float] = []
        self.long_steps_s: list[Point] = []

    async def run(self) -> None:
        """All of them, one after the other."""
        await self._ask("Warming up", words(16, self._random), 2)
        for _ in range(self._num_repeats):
            await self._texts()
            await self._pictures()
            await self._answers()
            await self._company()

    @property
    def beside(self) -> Seen:
        """What company did."""
        return self._interference.seen

    async def _texts(self) -> None:
        for length in TEXTS:
            receipt = await self._ask("Prompts", self._fresh(length), 1)
            num_computed = receipt.num_prompt_tokens - receipt.num_cached_tokens
            self._add("prefill", num_computed, busy_s(receipt.spans, ("prefill",)))
            self.overheads_s.append(max((receipt.ttft_s or 0.0) - busy_s(receipt.spans, _WORK), 0.0))

    async def _pictures(self) -> None:
        for width, height in SIZES:
            made = picture(token_hex(8), (width, height), "jpeg")
            receipt = await self._ask("Pictures", self._fresh(8), 1, made)
            self._add("media", width * height, busy_s(receipt.spans, _MEDIA))
            self._add("encode", receipt.num_visual_tokens, busy_s(receipt.spans, ("encode",)))
            self._add("transfer", receipt.num_visual_tokens, busy_s(receipt.spans, ("transfer",)))
            self._add("kv_transfer", receipt.num_prompt_tokens, busy_s(receipt.spans, ("kv_transfer",)))

    async def _answers(self) -> None:
        for company in COMPANY:
            texts = [self._fresh(8) for _ in range(company)]
            receipts = await asyncio.gather(*(self._ask("Answers", text, _NUM_STEPS) for text in texts))
            self._add("step", company, median(_step_s(receipt) for receipt in receipts))
        receipt = await self._ask("Answers", self._fresh(TEXTS[-1]), _NUM_STEPS)
        self.long_steps_s.append((receipt.num_prompt_tokens, _step_s(receipt)))

    async def _company(self) -> None:
        self._on_run("Interference", self._num_done, self._num_all)
        await self._interference.run()
        self._num_done += 1

    async def _ask(self, what: str, text: str, num_output_tokens: int, made: bytes | None = None) -> Receipt:
        self._on_run(what, self._num_done, self._num_all)
        receipt = await self._asking.ask(text, num_output_tokens=num_output_tokens, picture=made)
        self._num_done += 1
        return receipt

    def _add(self, stage: str, units: float, seconds: float) -> None:
        """Keep a point; a stage that took no time at all is none that this server has."""
        if seconds > 0:
            self.points.setdefault(stage, []).append((units, seconds))

    def _fresh(self, length: int) -> str:
        return f"{token_hex(4)} {words(length, self._random)}"


def _step_s(receipt: Receipt) -> float:
    return receipt.decode_s / max(receipt.num_output_tokens - 1, 1)


def profile_of(runs: Runs, source: str, **limits: int) -> Profile:
    """What the points come to. `limits` are fields of the calibration that no run can tell."""
    fits = {stage: fitted(points) for stage, points in runs.points.items()}
    costs = {stage: fit.cost for stage, fit in fits.items()}
    calibration = msgspec.structs.replace(
        Calibration(
            source=source,
            request=Cost(fixed_s=median(runs.overheads_s)),
            context_s=_context_s(costs["step"], runs.long_steps_s, runs.points["prefill"]),
            interference=runs.beside.interference,
            encode_parts=runs.beside.encode_parts,
            prefill_ahead=True,
        ),
        **costs,
        **limits,
    )
    return Profile(calibration=calibration, fits=fits, beside=runs.beside)


def _context_s(step: Cost, long_steps_s: Sequence[Point], prefills: Sequence[Point]) -> float:
    """What each token of context adds to a step: that of a long prompt over that of a short one."""
    short = min(units for units, _ in prefills)
    slopes = [(seconds - step.at(1)) / (units - short) for units, seconds in long_steps_s if units > short]
    return max(median(slopes), 0.0) if slopes else 0.0
