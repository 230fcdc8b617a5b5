"""A pooling worker that computes what texts say: 'score 0.5' has score 0.5, 'hang' never ends."""

import asyncio

import numpy as np

from chiasm.errors import ContextLengthError, EngineStepError
from chiasm.observability.receipt import Span
from chiasm.protocol.pooling.work import (
    ImageInput,
    MediaPairInput,
    PairInput,
    PoolingInfo,
    PoolOutput,
    PoolRequest,
    PoolResponse,
    TokensInput,
)
from tests.fakes import FakeWorker

ALL_TASKS = ("embed", "classify", "token_embed", "token_classify", "score")
LABELS = ("negative", "neutral", "positive")
WIDTH = 4


class FakePoolingWorker(FakeWorker):
    """Keeps the requests; inputs that start with 'long' are too long unless they may be cut."""

    def __init__(self, tasks=ALL_TASKS, **facts):
        super().__init__()
        self.pooling = PoolingInfo(
            tasks=tasks, width=WIDTH, labels=LABELS, max_tokens=8, prompts=("query", "document"), **facts
        )
        self.pooled: list[PoolRequest] = []

    async def pool(self, request: PoolRequest) -> PoolResponse:
        self.pooled.append(request)
        self.num_open += 1
        self.started.set()
        try:
            outputs = [self._output(request, item, one) for item, one in enumerate(request.inputs)]
            if any("hang" in _text(one) for one in request.inputs):
                await asyncio.Event().wait()
            return PoolResponse(outputs=tuple(outputs), num_computed_tokens=1, spans=(Span("forward", 0.0, 0.001),))
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        finally:
            self.num_open -= 1

    def _output(self, request, item, one):
        text = _text(one)
        if "break" in text:
            raise EngineStepError("The batch with this request failed")
        is_long = text.startswith("long")
        if is_long and request.params.truncate == "refuse":
            raise ContextLengthError("The input has 9 tokens, and 8 are the most", item=item)
        values = {
            "score": lambda: np.array([float(text.split()[-1])]),
            "embed": lambda: np.array([len(text), 0.5, -1.0, 0.25]),
            "token_embed": lambda: np.arange(8.0).reshape(2, 4),
            "classify": lambda: np.array([0.1, 0.2, float(text.split()[-1]) if "score" in text else 0.7]),
            "token_classify": lambda: np.array([[1.0, 0.0, 0.0], [0.0, np.nan, 1.0]]),
        }[request.task]()
        return PoolOutput(values=values.astype(np.float32), num_tokens=3, is_truncated=is_long)


def _text(one):
    if isinstance(one, ImageInput):
        return "a picture"
    if isinstance(one, MediaPairInput):
        return next((side for side in (one.second, one.first) if isinstance(side, str)), "score 0.25")
    if isinstance(one, TokensInput):
        return f"{len(one.token_ids)} ids"
    return one.second if isinstance(one, PairInput) else one.text
