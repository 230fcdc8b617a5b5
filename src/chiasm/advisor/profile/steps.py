"""What one more step costs: answers beside each other, short ones and long ones, and the difference.

What comes once for each request, its prompt and the gateway's work, is in both and cancels out. In a short answer it
is as much as the steps themselves: answers timed by themselves made steps look twice as long as they are, and two
workers look as if each slowed the other down.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import mean

from chiasm.advisor.profile.asking import Answered
from chiasm.advisor.profile.fitting import StepPoint, middle_mean
from chiasm.advisor.profile.sharing import CoreUse, Marginal, worker_of
from chiasm.simulator.calibration import Cost

COMPANY = (1, 2, 4, 8)
"""Answers side by side."""
SHORT, LONG = 16, 144
"""Tokens of answers."""
LONG_TEXT = 400
"""Words of a prompt that shows what context costs."""
NUM_QUESTIONS = 2 * (sum(COMPANY) + 1)
"""Of a round."""
_SETTLE_S = 0.02
_TEXT = 8

Ask = Callable[[int, int], Awaitable[Answered]]
"""Asks about a new text of so many words, for so many tokens."""


@dataclass(frozen=True)
class _Group:
    """Answers beside each other: seconds of one on average, and CPU seconds of all."""

    workers: Counter[str]
    prompt_tokens: float
    seconds: float
    cpu_s: float
    after_first_s: float

    @property
    def spread(self) -> list[int]:
        """Answers of each worker, whichever it was."""
        return sorted(self.workers.values())


class StepRuns:
    """Asks, and collects what steps cost; on several workers, as far as the server spreads answers evenly."""

    def __init__(self, ask: Ask, use: CoreUse) -> None:
        self._ask = ask
        self._use = use
        self._alone: list[StepPoint] = []  # one worker's, with nothing beside it
        self._crowded: list[StepPoint] = []  # of a worker beside others
        self._prompt_tokens: dict[int, float] = {}  # by words, of the first such prompts
        self._after_first_s: dict[int, list[tuple[float, float]]] = {}  # by words, of short answers alone, and a step

    async def run(self) -> None:
        """One round."""
        for company in COMPANY:
            await self._compare(company, _TEXT)
        await self._compare(1, LONG_TEXT)

    @property
    def points(self) -> list[StepPoint]:
        """Of a server that spreads answers over workers, also those, less what these took from each other."""
        beside = [seconds for running, _, seconds in self._crowded if running == 1]
        if len({running for running, _, _ in self._alone}) != 1 or not beside:
            return self._alone
        slower = max(middle_mean(beside) / middle_mean(seconds for _, _, seconds in self._alone), 1.0)
        return [*self._alone, *((running, context, seconds / slower) for running, context, seconds in self._crowded)]

    def after_prompt(self, context_s: float) -> Cost:
        """What comes once between the first token and the others, by tokens of the prompt.

        Of short answers about short and about long prompts, what their steps do not explain; `context_s` is of a step
        for each token of context, of which the long answers that steps are known by had more.
        """
        rests_s = {
            self._prompt_tokens[words]: middle_mean(
                after_s - (SHORT - 1) * (step_s - context_s * LONG / 2) for after_s, step_s in found
            )
            for words, found in self._after_first_s.items()
        }
        if not rests_s:
            return Cost()
        (few, short_s), (many, long_s) = min(rests_s.items()), max(rests_s.items())
        per_unit_s = max((long_s - short_s) / (many - few), 0.0) if many > few else 0.0
        return Cost(fixed_s=max(short_s - per_unit_s * few, 0.0), per_unit_s=per_unit_s)

    async def _compare(self, company: int, num_words: int) -> None:
        short, long = [await self._group(company, num_words, tokens) for tokens in (SHORT, LONG)]
        if short.spread != long.spread or len(set(long.spread)) > 1:
            return  # not of the same work, or not of the same everywhere
        each, num_steps = long.spread[0], LONG - SHORT
        seconds = (long.seconds - short.seconds) / num_steps
        if seconds <= 0:
            return  # something else happened meanwhile
        prompt_tokens = self._prompt_tokens.setdefault(num_words, long.prompt_tokens)  # no round's texts are another's
        if company == 1:
            self._after_first_s.setdefault(num_words, []).append((short.after_first_s, seconds))
        context = each * (prompt_tokens + (SHORT + LONG) / 2)
        (self._alone if len(long.workers) == 1 else self._crowded).append((each, context, seconds))
        cpu_s = max(long.cpu_s - short.cpu_s, 0.0) / num_steps / len(long.workers)
        self._use.step(
            Marginal(workers=frozenset(long.workers), running=each, context=context, seconds=seconds, cpu_s=cpu_s)
        )

    async def _group(self, company: int, num_words: int, num_tokens: int) -> _Group:
        await asyncio.sleep(_SETTLE_S)
        before_s = self._use.cpu_s()
        found = await asyncio.gather(*(self._ask(num_words, num_tokens) for _ in range(company)))
        await asyncio.sleep(_SETTLE_S)
        return _Group(
            workers=Counter(worker_of(one.receipt) for one in found),
            prompt_tokens=mean(one.receipt.num_prompt_tokens for one in found),
            seconds=mean(one.e2e_s for one in found),
            cpu_s=self._use.cpu_s() - before_s,
            after_first_s=mean(one.e2e_s - one.ttft_s for one in found),
        )
