"""The micro-runs: what is asked, and what each answer's receipt is read for."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from secrets import token_hex
from statistics import median

import msgspec

from chiasm.advisor.profile.asking import Answered, Asking
from chiasm.advisor.profile.fitting import Fit, Point, curved, fitted
from chiasm.advisor.profile.interference import InterferenceRuns, Seen
from chiasm.advisor.profile.processes import Processes
from chiasm.advisor.profile.sharing import CoreUse, worker_of
from chiasm.bench.workload.pictures import picture
from chiasm.bench.workload.text import words
from chiasm.errors import ContextLengthError, InvalidSettingError
from chiasm.routing.costs.spans import busy_s
from chiasm.simulator.calibration import Calibration, Cost

TEXTS = (16, 64, 128, 256, 400)
"""Words of prompts; all below the tokens of one step."""
LONG_TEXTS = (800, 1600)
"""Of prompts that take several steps; a server whose context is too short for them is not asked again."""
SIZES = ((224, 224), (448, 448), (640, 480), (896, 672), (1120, 840))
"""Of pictures, in pixels."""
COMPANY = (1, 2, 4, 8)
"""Answers side by side."""
_NUM_STEPS = 48
_MEDIA = ("decode_media", "prepare")
_PAUSES_S = (0.02, 0.08)
"""Between questions: a server that is asked without a pause is quicker than clients ever find it."""
_WORK = (*_MEDIA, "encode", "transfer", "prefill", "kv_transfer")

_CURVED = ("prefill", "encode")

OnRun = Callable[[str, int, int], None]
"""Told what is run, how many questions are done, and of how many."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """A calibration, how well each of its lines fits, and what company came to; what was not seen is left out.

    Attributes:
        contention: Of each run with answers on several workers, what their steps took longer than sharing explains.
    """

    calibration: Calibration
    fits: dict[str, Fit]
    beside: Seen
    contention: tuple[float, ...] = ()


class Runs:
    """Asks, and collects points by stage."""

    def __init__(self, asking: Asking, num_repeats: int, on_run: OnRun, processes: Processes | None = None) -> None:
        self._asking = asking
        self._num_repeats = num_repeats
        self._on_run = on_run
        self._num_done = 0
        self._num_all = num_repeats * (len(TEXTS) + len(LONG_TEXTS) + len(SIZES) + sum(COMPANY) + 2) + 1
        self._takes_long_texts = True
        self._interference = InterferenceRuns(asking, self._fresh)
        self._random = random.Random(token_hex(8))  # noqa: S311 - no cache may know these texts
        self.use = CoreUse(processes)
        self.points: dict[str, list[Point]] = {}
        self._crowded_steps: list[Point] = []
        self.overheads_s: list[float] = []
        self.long_steps_s: list[Point] = []

    async def run(self) -> None:
        """All of them, one after the other. Raises `InvalidSettingError` for receipts without the times of stages."""
        await self._ask("Warming up", words(16, self._random), 2)
        for _ in range(self._num_repeats):
            await self._texts()
            if "prefill" not in self.points:
                raise InvalidSettingError(
                    "The server's receipts do not say how long prompts took",
                    hint="Its engine reports no times; profile a server with Chiasm's own engine",
                )
            await self._pictures()
            await self._answers()
            await self._company()

    @property
    def beside(self) -> Seen:
        """What company did."""
        return self._interference.seen

    async def _texts(self) -> None:
        for length in TEXTS:
            answered, cpu_s = await self._alone("Prompts", self._fresh(length))
            prefill_s = self._add_prompt(answered)
            self.use.text(prefill_s, cpu_s)
            self.overheads_s.append(max(answered.ttft_s - busy_s(answered.receipt.spans, _WORK), 0.0))
        for length in LONG_TEXTS:
            await self._long_text(length)

    async def _long_text(self, length: int) -> None:
        if self._takes_long_texts:
            try:
                answered, _ = await self._alone("Long prompts", self._fresh(length))
                self._add_prompt(answered)
                return
            except ContextLengthError:
                self._takes_long_texts = False
        self._num_done += 1

    def _add_prompt(self, answered: Answered) -> float:
        receipt, prefill_s = answered.receipt, busy_s(answered.receipt.spans, ("prefill",))
        self._add("prefill", receipt.num_prompt_tokens - receipt.num_cached_tokens, prefill_s)
        return prefill_s

    async def _pictures(self) -> None:
        for width, height in SIZES:
            made = picture(token_hex(8), (width, height), "jpeg")
            answered, cpu_s = await self._alone("Pictures", self._fresh(8), made)
            receipt = answered.receipt
            self._add("media", width * height, busy_s(receipt.spans, _MEDIA))
            self._add("encode", receipt.num_visual_tokens, busy_s(receipt.spans, ("encode",)))
            self._add("transfer", receipt.num_visual_tokens, busy_s(receipt.spans, ("transfer",)))
            self._add("kv_transfer", receipt.num_prompt_tokens, busy_s(receipt.spans, ("kv_transfer",)))
            work_s, prefill_s = (busy_s(receipt.spans, some) for some in ((*_MEDIA, "encode"), ("prefill",)))
            self.use.picture(work_s, prefill_s, cpu_s)

    async def _alone(self, what: str, text: str, made: bytes | None = None) -> tuple[Answered, float]:
        """Ask for one token after a pause; with the CPU seconds that it took, what comes after its end included."""
        await asyncio.sleep(self._random.uniform(*_PAUSES_S))
        before_s = self.use.cpu_s()
        answered = await self._ask(what, text, 1, made)
        await asyncio.sleep(_PAUSES_S[0])
        return answered, self.use.cpu_s() - before_s

    async def _answers(self) -> None:
        for company in COMPANY:
            texts = [self._fresh(8) for _ in range(company)]
            before_s = self.use.cpu_s()
            found = await asyncio.gather(*(self._ask("Answers", text, _NUM_STEPS) for text in texts))
            receipts, steps_s = [one.receipt for one in found], [one.step_s for one in found]
            self.use.answers(receipts, steps_s, self.use.cpu_s() - before_s)
            counts = Counter(map(worker_of, receipts))
            points = [(counts[worker_of(one.receipt)], one.step_s) for one in found]
            for count in set(counts.values()):
                point = (count, median(seconds for each, seconds in points if each == count))
                (self.points.setdefault("step", []) if len(counts) == 1 else self._crowded_steps).append(point)
        answered = await self._ask("Answers", self._fresh(TEXTS[-1]), _NUM_STEPS)
        self.long_steps_s.append((answered.receipt.num_prompt_tokens, answered.step_s))

    @property
    def all_points(self) -> dict[str, list[Point]]:
        """Also steps of several answers on a server that spreads them over workers, less what these took from each
        other.
        """
        steps, beside = self.points["step"], [seconds for count, seconds in self._crowded_steps if count == 1]
        if len({count for count, _ in steps}) > 1 or not beside:
            return self.points
        slower = max(median(beside) / median(seconds for _, seconds in steps), 1.0)
        return self.points | {"step": [*steps, *((count, seconds / slower) for count, seconds in self._crowded_steps)]}

    async def _company(self) -> None:
        self._on_run("Interference", self._num_done, self._num_all)
        await self._interference.run()
        self._num_done += 1

    async def _ask(self, what: str, text: str, num_output_tokens: int, made: bytes | None = None) -> Answered:
        self._on_run(what, self._num_done, self._num_all)
        answered = await self._asking.ask(text, num_output_tokens=num_output_tokens, picture=made)
        self._num_done += 1
        return answered

    def _add(self, stage: str, units: float, seconds: float) -> None:
        """Keep a point; a stage that took no time at all is none that this server has."""
        if seconds > 0:
            self.points.setdefault(stage, []).append((units, seconds))

    def _fresh(self, length: int) -> str:
        return f"{token_hex(4)} {words(length, self._random)}"


def profile_of(runs: Runs, source: str, **limits: int) -> Profile:
    """What the points come to. `limits` are fields of the calibration that no run can tell."""
    points = runs.all_points
    fits = {stage: fitted(found) for stage, found in points.items() if stage not in _CURVED}
    fits |= {"prefill": curved(points["prefill"], Calibration().max_step_tokens)}
    fits |= {stage: curved(points[stage]) for stage in ("encode",) if stage in points}
    costs = {stage: fit.cost for stage, fit in fits.items()}
    request_s = median(runs.overheads_s)
    calibration = msgspec.structs.replace(
        Calibration(
            source=source,
            request=Cost(fixed_s=request_s),
            prefill_quadratic_s=fits["prefill"].quadratic_s,
            encode_quadratic_s=fits["encode"].quadratic_s if "encode" in fits else 0.0,
            context_s=_context_s(costs["step"], runs.long_steps_s, points["prefill"]),
            interference=runs.beside.interference,
            encode_parts=runs.beside.encode_parts,
            prefill_ahead=True,
            sharing=runs.use.sharing(request_s),
        ),
        **costs,
        **limits,
    )
    return Profile(
        calibration=calibration, fits=fits | runs.use.fits, beside=runs.beside, contention=runs.use.contention
    )


def _context_s(step: Cost, long_steps_s: Sequence[Point], prefills: Sequence[Point]) -> float:
    """What each token of context adds to a step: that of a long prompt over that of a short one."""
    short = min(units for units, _ in prefills)
    slopes = [(seconds - step.at(1)) / (units - short) for units, seconds in long_steps_s if units > short]
    return max(median(slopes), 0.0) if slopes else 0.0
