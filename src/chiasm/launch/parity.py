"""A model as it is served beside the same model in transformers."""

import asyncio
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from chiasm.errors import InvalidSettingError
from chiasm.launch.model import model_directory, served_name
from chiasm.launch.parity_pictures import open_picture, sample_pictures
from chiasm.launch.pooling import SHAPES, start_pooling_worker
from chiasm.pooling.model_files import PoolingModel, read_pooling_model
from chiasm.pooling.parity import Array, Comparison, ParityReport, compare, decided, equal
from chiasm.protocol.media import MediaItem
from chiasm.protocol.pooling.work import (
    ImageInput,
    PairInput,
    PoolingTask,
    PoolingWorker,
    PoolInput,
    PoolOutput,
    PoolParams,
    PoolRequest,
    TextInput,
)
from chiasm.settings import Settings

if TYPE_CHECKING:
    from chiasm.engines.pooling.dual_reference import DualReference
    from chiasm.engines.pooling.reference import HuggingFaceReference

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
    settings: Settings,
    texts: Sequence[Text],
    tolerance: float | None,
    progress: Callable[[str, float], None],
    threshold: float | None = None,
) -> ParityReport:
    """Compute texts both ways and compare.

    Args:
        settings: What would be served, dtype included.
        texts: Texts, or pairs; none: `SAMPLE`.
        tolerance: Largest difference allowed to the float32 reference; None: 1e-5 for float32, 2e-2 for bfloat16.
        progress: Told how it goes.
        threshold: Of classifiers: what a class must reach; None: the largest one is chosen.

    Raises:
        InvalidSettingError: Tolerance or threshold is not a number that something could be compared with.
        EngineStartError: The model cannot be served, or has no reference.
    """
    _check_threshold(threshold)
    allowed = _tolerance(tolerance, settings.engine.dtype)
    directory = model_directory(settings.engine.model)
    model = read_pooling_model(directory, SHAPES[settings.pooling.task])
    chosen = list(texts) or list(SAMPLE)
    worker = start_pooling_worker(settings, progress)
    progress("Loading the reference", 0.5)
    is_dual = model.takes_images and model.shape == "embedder"
    reference = _reference(directory, model, is_dual=is_dual)
    task = _TASKS[model.shape]
    pictures = sample_pictures() if is_dual else []
    together, alone = asyncio.run(_served(worker, task, [*chosen, *pictures]))
    count = len(chosen)
    progress("Computing the reference", 0.7)
    comparisons = [
        _of_tokens(reference, directory, model, chosen),
        *_of_texts(reference, chosen, together[:count], alone[:count], allowed),
    ]
    if labels := worker.pooling.labels:
        comparisons += _of_decisions(reference, chosen, labels, together[:count], threshold)
    if pictures:
        comparisons += _of_pictures(reference, pictures, together[count:], alone[count:], allowed)
    return ParityReport(
        model=served_name(settings.engine),
        task=task,
        dtype=settings.engine.dtype,
        is_passed=all(one.is_passed for one in comparisons),
        comparisons=tuple(comparisons),
    )


def _check_threshold(threshold: float | None) -> None:
    if threshold is not None and not isfinite(threshold):
        raise InvalidSettingError(f"No class reaches a threshold of {threshold}, or all do", hint="Name a number")


def _tolerance(asked: float | None, dtype: str) -> float:
    """Nothing is larger than what is no number: every comparison with it would pass."""
    if asked is None:
        return _FLOAT32_TOLERANCE if dtype == "float32" else _BFLOAT16_TOLERANCE
    if not 0 <= asked < _ANY:
        raise InvalidSettingError(f"A tolerance of {asked} allows nothing, or all", hint="Name 0 or more")
    return asked


def _reference(directory: Path, model: PoolingModel, *, is_dual: bool) -> "DualReference | HuggingFaceReference":
    from chiasm.engines.pooling.dual_reference import DualReference
    from chiasm.engines.pooling.reference import HuggingFaceReference

    return DualReference(directory, model) if is_dual else HuggingFaceReference(directory, model)


def _of_tokens(
    reference: "DualReference | HuggingFaceReference", directory: Path, model: PoolingModel, texts: Sequence[Text]
) -> Comparison:
    from chiasm.engines.pooling.batch import Tokens
    from chiasm.engines.pooling.tokens import InputTokenizer

    tokenizer = InputTokenizer(directory, model, max_tokens=model.max_tokens)
    encoded = tokenizer.encode([_input(text) for text in texts], PoolParams(truncate="end"))
    found = [list(tokens.ids) for one in encoded if isinstance(tokens := one.content, Tokens)]
    return equal(
        "token ids of each text", found, [reference.token_ids(text) for text in texts], "against AutoTokenizer"
    )


def _of_decisions(
    reference: "DualReference | HuggingFaceReference",
    texts: Sequence[Text],
    labels: Sequence[str],
    together: Sequence[PoolOutput],
    threshold: float | None,
) -> list[Comparison]:
    what = "largest class" if threshold is None else f"classes from {threshold:g} on"
    name = f"{what} of each text, served to transformers"
    return [
        equal("labels", labels, reference.labels),
        decided(name, _values(together), reference.values(texts), threshold),
    ]


def _of_texts(
    reference: "DualReference | HuggingFaceReference",
    texts: Sequence[Text],
    together: Sequence[PoolOutput],
    alone: Sequence[PoolOutput],
    allowed: float,
) -> list[Comparison]:
    wanted = reference.values(texts)
    counts = [len(reference.token_ids(text)) for text in texts]
    return [
        equal("number of tokens of each text", [one.num_tokens for one in together], counts, "against AutoTokenizer"),
        compare("served, all in one batch, to transformers in float32", _values(together), wanted, allowed),
        compare("served, one by one, to transformers in float32", _values(alone), wanted, allowed),
        compare("served in a batch to served alone", _values(together), _values(alone), _BATCH_TOLERANCE),
        # How much padding alone moves them, for information: nothing is padded here.
        compare("transformers padded to transformers alone", reference.values(texts, is_padded=True), wanted, _ANY),
    ]


def _of_pictures(
    reference: "DualReference | HuggingFaceReference",
    pictures: Sequence[MediaItem],
    together: Sequence[PoolOutput],
    alone: Sequence[PoolOutput],
    allowed: float,
) -> list[Comparison]:
    from chiasm.engines.pooling.dual_reference import DualReference

    assert isinstance(reference, DualReference), "others are shown no pictures"
    wanted = reference.pictures([open_picture(one) for one in pictures])
    return [
        compare("pictures, all in one request, to transformers in float32", _values(together), wanted, allowed),
        compare("pictures in a request to those alone", _values(together), _values(alone), _BATCH_TOLERANCE),
    ]


async def _served(
    worker: PoolingWorker, task: PoolingTask, contents: Sequence[Text | MediaItem]
) -> tuple[list[PoolOutput], list[PoolOutput]]:
    async def ask(chosen: Sequence[Text | MediaItem], scope: str) -> list[PoolOutput]:
        request = PoolRequest(
            request_id="parity",
            task=task,
            inputs=tuple(map(_input, chosen)),
            params=PoolParams(truncate="end"),
            cache_salt=scope,
        )
        return list((await worker.pool(request)).outputs)

    try:
        together = await ask(contents, "together")  # of its own scope: a picture alone is to be computed again
        return together, [one for content in contents for one in await ask([content], "alone")]
    finally:
        await worker.aclose()


def _input(content: Text | MediaItem) -> PoolInput:
    if isinstance(content, MediaItem):
        return ImageInput(content)
    return TextInput(content) if isinstance(content, str) else PairInput(*content)


def _values(outputs: Sequence[PoolOutput]) -> list[Array]:
    return [one.values for one in outputs]
