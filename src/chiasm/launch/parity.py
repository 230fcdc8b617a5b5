"""A model as it is served beside the same model in transformers."""

import asyncio
from collections.abc import Callable, Sequence

from chiasm.launch.model import model_directory, served_name
from chiasm.launch.pooling import SHAPES, start_pooling_worker
from chiasm.pooling.model_files import read_pooling_model
from chiasm.pooling.parity import Array, ParityReport, compare, equal
from chiasm.protocol.pooling.work import (
    PairInput,
    PoolingTask,
    PoolingWorker,
    PoolOutput,
    PoolParams,
    PoolRequest,
    TextInput,
)
from chiasm.settings import Settings

Text = str | tuple[str, str]
SAMPLE: tuple[str, ...] = (
    "",
    "a",
    "The quick brown fox jumps over the lazy dog.",
    "The quick brown fox jumps over the lazy dog.",
    "Ünïcode, 漢字 and emoji \U0001f600; tabs\tand\nnewlines",
    "numbers 1234567890 and symbols #$%&",
    "a longer text, " * 30,
    "much longer than most models take, " * 1200,
)
"""Lengths from nothing to more than fits, letters of many kinds, one text twice."""
_FLOAT32_TOLERANCE = 1e-5
_BFLOAT16_TOLERANCE = 2e-2
_BATCH_TOLERANCE = 1e-6
_ANY = float("inf")
_TASKS: dict[str, PoolingTask] = {
    "embedder": "embed",
    "late_interaction": "token_embed",
    "sequence_classifier": "classify",
    "token_classifier": "token_classify",
}


def check_parity(
    settings: Settings, texts: Sequence[Text], tolerance: float | None, progress: Callable[[str, float], None]
) -> ParityReport:
    """Compute texts both ways and compare.

    Args:
        settings: What would be served, dtype included.
        texts: Texts, or pairs; none: `SAMPLE`.
        tolerance: Largest difference allowed to the float32 reference; None: 1e-5 for float32, 2e-2 for bfloat16.
        progress: Told how it goes.

    Raises:
        EngineStartError: The model cannot be served, or has no reference.
    """
    directory = model_directory(settings.engine.model)
    model = read_pooling_model(directory, SHAPES[settings.pooling.task])
    chosen = list(texts) or list(SAMPLE)
    worker = start_pooling_worker(settings, progress)
    from chiasm.engines.pooling.reference import HuggingFaceReference

    progress("Loading the reference", 0.5)
    reference = HuggingFaceReference(directory, model)
    task = _TASKS[model.shape]
    together, alone = asyncio.run(_served(worker, task, chosen))
    progress("Computing the reference", 0.7)
    wanted = reference.values(chosen)
    dtype = settings.engine.dtype
    allowed = tolerance or (_FLOAT32_TOLERANCE if dtype == "float32" else _BFLOAT16_TOLERANCE)
    counts = [len(reference.token_ids(text)) for text in chosen]
    comparisons = [
        equal("number of tokens of each text", [one.num_tokens for one in together], counts, "against AutoTokenizer"),
        *([equal("labels", worker.pooling.labels, reference.labels)] if worker.pooling.labels else []),
        compare("served, all in one batch, to transformers in float32", _values(together), wanted, allowed),
        compare("served, one by one, to transformers in float32", _values(alone), wanted, allowed),
        compare("served in a batch to served alone", _values(together), _values(alone), _BATCH_TOLERANCE),
        # How much padding alone moves them, for information: nothing is padded here.
        compare("transformers padded to transformers alone", reference.values(chosen, is_padded=True), wanted, _ANY),
    ]
    return ParityReport(
        model=served_name(settings.engine),
        task=task,
        dtype=dtype,
        is_passed=all(one.is_passed for one in comparisons),
        comparisons=tuple(comparisons),
    )


async def _served(
    worker: PoolingWorker, task: PoolingTask, texts: Sequence[Text]
) -> tuple[list[PoolOutput], list[PoolOutput]]:
    async def ask(chosen: Sequence[Text]) -> list[PoolOutput]:
        inputs = tuple(TextInput(one) if isinstance(one, str) else PairInput(*one) for one in chosen)
        request = PoolRequest(request_id="parity", task=task, inputs=inputs, params=PoolParams(truncate="end"))
        return list((await worker.pool(request)).outputs)

    try:
        return await ask(texts), [one for text in texts for one in await ask([text])]
    finally:
        await worker.aclose()


def _values(outputs: Sequence[PoolOutput]) -> list[Array]:
    return [one.values for one in outputs]
