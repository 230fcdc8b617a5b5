"""The micro-runs: what is asked, and what each answer's receipt is read for."""

import asyncio
import random
from collections.abc import Callable, Mapping
from secrets import token_hex

import msgspec

from chiasm.advisor.profile.asking import Answered, Asks
from chiasm.advisor.profile.fitting import Fit, Point, curved, fitted, fitted_steps, middle_mean
from chiasm.advisor.profile.interference import InterferenceRuns, Seen
from chiasm.advisor.profile.processes import Processes
from chiasm.advisor.profile.sharing import CoreUse, with_contention
from chiasm.advisor.profile.stalls import StallRuns
from chiasm.advisor.profile.steps import NUM_QUESTIONS, StepRuns
from chiasm.bench.workload.pictures import picture
from chiasm.bench.workload.text import words
from chiasm.errors import ContextLengthError, InvalidSettingError, UnsupportedMediaError
from chiasm.routing.costs.spans import busy_s
from chiasm.simulator.calibration import Calibration, Cost, Evidence, Interference

TEXTS = (16, 64, 128, 256, 400)
"""Words of prompts; all below the tokens of one step."""
LONG_TEXTS = (800, 1600)
"""Of prompts that take several steps; a server whose context is too short for them is not asked again."""
SIZES = ((224, 224), (448, 448), (640, 480), (896, 672), (1120, 840))
"""Of pictures, in pixels."""
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
        takes_pictures: Whether the model does.
    """

    calibration: Calibration
    fits: dict[str, Fit]
    beside: Seen
    contention: tuple[float, ...] = ()
    takes_pictures: bool = True


class Runs:
    """Asks, and collects points by stage.

    Attributes:
        takes_pictures: Whether it does, as far as is known; one that refuses the first is not asked about any more.
        visual_tokens: Of pictures: their pixels, and their tokens.
        overheads_s: Of texts, what they took until their first token besides their stages; `picture_overheads_s` of
            requests with one picture.
    """

    def __init__(self, asking: Asks, num_repeats: int, on_run: OnRun, processes: Processes | None = None) -> None:
        self._asking = asking
        self._num_repeats = num_repeats
        self._on_run = on_run
        self._num_done = 0
        self._num_all = num_repeats * (len(TEXTS) + len(LONG_TEXTS) + len(SIZES) + NUM_QUESTIONS + 1) + 1
        self._takes_long_texts = True
        self.takes_pictures = True
        self._interference = InterferenceRuns(asking, self._fresh)
        self.stalls = StallRuns(asking, self._fresh)
        self._random = random.Random(token_hex(8))  # noqa: S311 - no cache may know these texts
        self.use = CoreUse(processes)
        self.points: dict[str, list[Point]] = {}
        self.visual_tokens: list[Point] = []
        self.steps = StepRuns(self._answer, self.use)
        self.overheads_s: list[float] = []
        self.picture_overheads_s: list[float] = []

    async def run(self) -> None:
        """All rounds, one after the other. Raises what `round` raises."""
        for _ in range(self._num_repeats):
            await self.round()

    async def round(self) -> None:
        """Each size once. Raises `InvalidSettingError` for receipts without the times of stages."""
        if not self._num_done:
            await self._ask("Warming up", words(16, self._random), 2)
        await self._texts()
        if "prefill" not in self.points:
            raise InvalidSettingError(
                "The server's receipts do not say how long prompts took",
                hint="Its engine reports no times; profile a server with Chiasm's own engine",
            )
        if self.takes_pictures:
            await self._pictures()
        else:
            self._num_done += len(SIZES)
        await self.steps.run()
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
            self.overheads_s.append(_overhead_s(answered))
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
        for place, (width, height) in enumerate(SIZES):
            made = picture(token_hex(8), (width, height), "jpeg")
            try:
                answered, cpu_s = await self._alone("Pictures", self._fresh(8), made)
            except UnsupportedMediaError:
                self.takes_pictures = False
                self._num_done += len(SIZES) - place
                return
            receipt = answered.receipt
            self.picture_overheads_s.append(_overhead_s(answered))
            if receipt.num_visual_tokens:
                self.visual_tokens.append((width * height, receipt.num_visual_tokens))
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

    async def _answer(self, num_words: int, num_tokens: int) -> Answered:
        return await self._ask("Answers", self._fresh(num_words), num_tokens)

    async def _company(self) -> None:
        self._on_run("Interference", self._num_done, self._num_all)
        await self.stalls.run()
        if self.takes_pictures:
            await self._interference.run(max((step_s for _, _, step_s in self.steps.points), default=0.0))
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
    points = runs.points
    fits = {stage: fitted(found) for stage, found in points.items() if stage not in _CURVED}
    fits |= {"prefill": curved(points["prefill"], Calibration().max_step_tokens), "step": _fitted_steps(runs)}
    fits |= {stage: curved(points[stage]) for stage in ("encode",) if stage in points}
    costs = {stage: fit.cost for stage, fit in fits.items()}
    request, context_s = _request_cost(runs), fits["step"].context_s
    calibration = msgspec.structs.replace(
        Calibration(
            source=source,
            request=request,
            prefill_quadratic_s=fits["prefill"].quadratic_s,
            encode_quadratic_s=fits["encode"].quadratic_s if "encode" in fits else 0.0,
            visual_tokens=fitted(runs.visual_tokens).cost if runs.visual_tokens else None,
            context_s=context_s,
            after_prompt=runs.steps.after_prompt(context_s),
            stall_s=max(middle_mean(runs.stalls.seconds), 0.0) if runs.stalls.seconds else 0.0,
            interference=runs.beside.interference,
            encode_parts=runs.beside.encode_parts,
            prefill_ahead=True,
            sharing=runs.use.sharing(request.fixed_s, context_s),
        ),
        **costs,
        **limits,
    )
    if calibration.sharing is not None:
        calibration = with_contention(calibration, calibration.sharing.contention)
    found = fits | runs.use.fits
    return Profile(
        calibration=msgspec.structs.replace(calibration, evidence=_evidence(found, runs.beside)),
        fits=found,
        beside=runs.beside,
        contention=runs.use.contention,
        takes_pictures=runs.takes_pictures,
    )


def _overhead_s(answered: Answered) -> float:
    """What a request took until its first token besides its stages."""
    return max(answered.ttft_s - busy_s(answered.receipt.spans, _WORK), 0.0)


def _request_cost(runs: Runs) -> Cost:
    text_s = middle_mean(runs.overheads_s)
    with_picture_s = middle_mean(runs.picture_overheads_s) if runs.picture_overheads_s else text_s
    return Cost(fixed_s=text_s, per_unit_s=max(with_picture_s - text_s, 0.0))


def _evidence(fits: Mapping[str, Fit], beside: Seen) -> dict[str, Evidence]:
    found = {
        stage: Evidence(num_points=fit.num_points, error=fit.error, residuals=fit.residuals)
        for stage, fit in fits.items()
    }
    for name in Interference.__struct_fields__:
        if name in beside.rounds:
            seen = beside.slowdown(name)
            found[name] = Evidence(num_points=len(beside.rounds[name]), interval=(seen.low, seen.high))
    return found


def _fitted_steps(runs: Runs) -> Fit:
    """Raises `InvalidSettingError` where no two lengths of answers could be compared."""
    if not runs.steps.points:
        raise InvalidSettingError(
            "No step could be timed: longer answers did not take longer than short ones",
            hint="Profile the server when its machine has nothing else to do",
        )
    return fitted_steps(runs.steps.points)
