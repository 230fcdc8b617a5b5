"""How work slows down what happens beside it: the same questions alone and in company.

Answers that decode, and pictures one after the other beside them; a text that comes while a picture is encoded. Each
figure is relative to the same work alone in the same round, so that a machine that is slower for a while does not
count as interference. What was asked of several workers at once tells nothing of one, and counts for nothing; what
differs too much from round to round is not measurable, and said to be.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from secrets import token_hex
from statistics import mean, median, stdev

import msgspec

from chiasm.advisor.profile.asking import Asks
from chiasm.advisor.profile.sharing import worker_of
from chiasm.bench.workload.pictures import picture
from chiasm.observability.receipt import Receipt
from chiasm.routing.costs.spans import busy_s
from chiasm.simulator.calibration import Interference

SIZE = (896, 672)
NUM_ANSWERS = 2
NUM_STEPS = 640
"""Long enough for several pictures beside them."""
FEWEST_STEPS = 160
ANSWER_S = 20.0
"""Where steps are slow, answers have as many as take so long, but not fewer than `FEWEST_STEPS`."""
MAX_PICTURES = 16
NUM_TEXTS = 4
_MEDIA = ("decode_media", "prepare")
_MAX_PARTS = 64
_LEAST_SHARE = 0.1
"""Of the time that something has to happen beside steps before their slowdown is put down to it."""

Fresh = Callable[[int], str]
"""Makes a text of so many words that no cache knows."""


_T_95 = {1: 12.7, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
"""Student's t, two-sided 95 %, by degrees of freedom."""
_WIDEST = 0.5
"""Half of an interval that is wider than this and than what it is about tells nothing."""
_QUICKEST = -0.5
"""Nothing takes half as long because something happens beside it: less than this is noise."""


class Slowdown(msgspec.Struct, frozen=True, kw_only=True):
    """How much longer work takes in company; `low` to `high` is the 95 % interval over rounds, of one round itself."""

    taken: float
    low: float
    high: float

    @property
    def is_measurable(self) -> bool:
        """Whether the rounds agree well enough to say anything."""
        widest = max(_WIDEST, self.taken)
        return self.taken >= _QUICKEST and (self.high - self.low) / 2 <= widest


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Of each slowdown, what each round came to; `encode_parts` likewise. What was not seen is not there."""

    rounds: dict[str, tuple[float, ...]]
    num_workers: int = 1

    def slowdown(self, name: str) -> Slowdown:
        """One of them, over the rounds. None takes less than no time at all, so no interval reaches below -1."""
        values = self.rounds[name]
        count, taken = len(values), median(values)
        half = _T_95.get(count - 1, 2.0) * stdev(values) / count**0.5 if count > 1 else 0.0
        return Slowdown(taken=max(taken, -1.0), low=max(taken - half, -1.0), high=max(taken + half, -1.0))

    @property
    def interference(self) -> Interference:
        """Of what is measurable; nothing is ever quicker in company."""
        names = [name for name in Interference.__struct_fields__ if name in self.rounds]
        seen = {name: self.slowdown(name) for name in names}
        return Interference(**{name: max(one.taken, 0.0) for name, one in seen.items() if one.is_measurable})

    @property
    def encode_parts(self) -> int:
        """Parts in which a batch is encoded beside steps."""
        return min(max(round(median(self.rounds.get("encode_parts", (1.0,)))), 1), _MAX_PARTS)


class InterferenceRuns:
    """Asks, and collects slowdowns by round."""

    def __init__(self, asking: Asks, fresh: Fresh) -> None:
        self._asking = asking
        self._fresh = fresh
        self._random = random.Random(token_hex(8))  # noqa: S311 - moments within a picture
        self._rounds: dict[str, list[float]] = {}
        self._workers: set[str] = set()
        self._num_steps = NUM_STEPS

    @property
    def seen(self) -> Seen:
        """All rounds so far."""
        return Seen(
            rounds={name: tuple(values) for name, values in self._rounds.items()},
            num_workers=max(len(self._workers), 1),
        )

    async def run(self, usual_step_s: float = 0.0) -> None:
        """One round; `usual_step_s` is about what a step of the server takes."""
        self._num_steps = max(min(int(ANSWER_S / max(usual_step_s, 1e-9)), NUM_STEPS), FEWEST_STEPS)
        alone = await self._answers()
        step_s, until_first_s = _step_s(alone), max(one.ttft_s or 0.0 for one in alone)
        pictures = [await self._picture() for _ in range(2)]
        answers, beside = await self._answers_beside_pictures(until_first_s)
        self._workers |= set(map(worker_of, [*alone, *pictures, *answers, *beside]))
        if len(self._workers) > 1:
            return
        is_apart = any(busy_s(one.spans, ("transfer",)) for one in pictures)
        self._note_steps(step_s, answers, beside, is_apart=is_apart)
        if beside:
            stage = ("encode",) if is_apart else _MEDIA
            ratio = _mean_s(beside, stage) / max(_mean_s(pictures, stage), 1e-9)
            self._note("encode_by_engine" if is_apart else "media_by_engine", ratio - 1.0)
        await self._texts_beside_a_picture(pictures, is_apart=is_apart)

    def _note_steps(
        self, step_s: float, answers: Sequence[Receipt], beside: Sequence[Receipt], *, is_apart: bool
    ) -> None:
        """What steps took longer, over the share of their time in which something happened beside them.

        Prompts, and in one process batches of pictures, are computed between steps and no part of them.
        """
        decode_s = mean(one.decode_s for one in answers)
        between = ("prefill",) if is_apart else ("prefill", "encode")
        between_s = sum(busy_s(one.spans, between) for one in beside)
        share = sum(busy_s(one.spans, ("encode",) if is_apart else _MEDIA) for one in beside) / decode_s
        if share >= _LEAST_SHARE and decode_s > between_s:
            slower = (decode_s - between_s) / (self._num_steps - 1) / step_s - 1.0
            self._note("step_by_encode" if is_apart else "engine_by_media", slower / min(share, 1.0))

    async def _texts_beside_a_picture(self, pictures: Sequence[Receipt], *, is_apart: bool) -> None:
        """Texts that come while a picture is encoded: how long they wait, or how much longer their prompts take."""
        before_s, encode_s = _mean_s(pictures, _MEDIA), _mean_s(pictures, ("encode",))
        waits_s, alone_s, beside_s = [], [], []
        for _ in range(NUM_TEXTS):
            alone_s.append(busy_s((await self._text()).spans, ("prefill",)))
            moment_s = before_s + encode_s * self._random.uniform(0.2, 0.8)
            _, text = await asyncio.gather(self._picture(), self._text(moment_s))
            beside_s.append(busy_s(text.spans, ("prefill",)))
            waits_s.append(text.stages_s.get("prefill_queue", 0.0))
        if is_apart and median(alone_s) > 0:
            self._note("prefill_by_encoder", median(beside_s) / median(alone_s) - 1.0)
        elif encode_s:
            self._note("encode_parts", encode_s / max(2 * mean(waits_s), encode_s / _MAX_PARTS))

    async def _answers(self) -> list[Receipt]:
        texts = [self._fresh(8) for _ in range(NUM_ANSWERS)]
        found = await asyncio.gather(*(self._asking.ask(text, num_output_tokens=self._num_steps) for text in texts))
        return [one.receipt for one in found]

    async def _answers_beside_pictures(self, until_first_s: float) -> tuple[list[Receipt], list[Receipt]]:
        """Pictures from about the first token on; the last one may have gone on alone, and does not count."""
        answers = asyncio.create_task(self._answers())
        pictures: list[Receipt] = []
        try:
            await asyncio.sleep(until_first_s)
            while not answers.done() and len(pictures) < MAX_PICTURES:
                pictures.append(await self._picture())
            return await answers, pictures[:-1] if len(pictures) < MAX_PICTURES else pictures
        finally:
            answers.cancel()

    async def _picture(self) -> Receipt:
        made = picture(token_hex(8), SIZE, "jpeg")
        return (await self._asking.ask(self._fresh(8), num_output_tokens=1, picture=made)).receipt

    async def _text(self, after_s: float = 0.0) -> Receipt:
        await asyncio.sleep(after_s)
        return (await self._asking.ask(self._fresh(64), num_output_tokens=1)).receipt

    def _note(self, what: str, slower: float) -> None:
        self._rounds.setdefault(what, []).append(slower)


def _step_s(receipts: Sequence[Receipt]) -> float:
    return mean(one.decode_s / max(one.num_output_tokens - 1, 1) for one in receipts)


def _mean_s(receipts: Sequence[Receipt], stages: Sequence[str]) -> float:
    return mean(busy_s(one.spans, stages) for one in receipts)
