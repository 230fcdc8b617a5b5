"""How long running answers stand still for each request that comes beside them, besides its prompt.

One interpreter reads and plans a worker's requests, answers them and begins its steps. While it does the one, the other
waits. Two answers run, alone and while texts come one after the other; what they take longer is, for each text, its
prompt and this.
"""

import asyncio
from collections.abc import Sequence
from statistics import mean

from chiasm.advisor.profile.asking import Answered, Asks
from chiasm.advisor.profile.interference import Fresh
from chiasm.advisor.profile.sharing import worker_of
from chiasm.routing.costs.spans import busy_s

NUM_ANSWERS = 2
NUM_STEPS = 160
MAX_TEXTS = 32
NUM_ALONE = 4
_TEXT = 8


class StallRuns:
    """Asks, and collects what each round came to.

    Attributes:
        seconds: By round, for each text; of a server that spreads requests over workers nothing.
    """

    def __init__(self, asking: Asks, fresh: Fresh) -> None:
        self._asking = asking
        self._fresh = fresh
        self.seconds: list[float] = []

    async def run(self) -> None:
        """One round."""
        prompts = [await self._text() for _ in range(NUM_ALONE)]
        alone = await self._answers()
        beside, num_texts = await self._answers_beside_texts(max(one.ttft_s for one in alone))
        if len({worker_of(one.receipt) for one in (*prompts, *alone, *beside)}) > 1 or not num_texts:
            return
        longer_s = _mean_decode_s(beside) - _mean_decode_s(alone)
        self.seconds.append(longer_s / num_texts - mean(busy_s(one.receipt.spans, ("prefill",)) for one in prompts))

    async def _answers(self) -> list[Answered]:
        texts = [self._fresh(_TEXT) for _ in range(NUM_ANSWERS)]
        return await asyncio.gather(*(self._asking.ask(text, num_output_tokens=NUM_STEPS) for text in texts))

    async def _answers_beside_texts(self, until_first_s: float) -> tuple[list[Answered], float]:
        """From about the first token on; of a text that the answers' end came upon, half counts."""
        answers, num_texts = asyncio.create_task(self._answers()), 0.0
        try:
            await asyncio.sleep(until_first_s)
            while not answers.done() and num_texts < MAX_TEXTS:
                await self._text()
                num_texts += 0.5 if answers.done() else 1.0
            return await answers, num_texts
        finally:
            answers.cancel()

    async def _text(self) -> Answered:
        return await self._asking.ask(self._fresh(_TEXT), num_output_tokens=1)


def _mean_decode_s(answers: Sequence[Answered]) -> float:
    return mean(one.receipt.decode_s for one in answers)
