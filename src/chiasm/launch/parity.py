"""A model as it is served beside the same model in transformers."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from chiasm.errors import InvalidSettingError
from chiasm.launch.model import model_directory, served_name
from chiasm.launch.parity_pictures import open_picture, sample_pictures
from chiasm.launch.pooling import SHAPES, start_pooling_worker
from chiasm.pooling.model_files import PoolingModel, read_pooling_model
from chiasm.pooling.parity import Array, Comparison, ParityReport, compare, decided, equal
from chiasm.protocol.media import MediaItem
from chiasm.protocol.pooling.work import (
    ImageInput,
    MediaPairInput,
    PairInput,
    PoolingTask,
    PoolingWorker,
    PoolInput,
    PoolOutput,
    PoolParams,
    PoolRequest,
    TextInput,
)
from chiasm.settings import PoolingSettings, Settings

Text = str | tuple[str, str]
Content = Text | MediaItem | MediaPairInput
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
    "yes_no": "score",
    "image_ranker": "score",
}
_QUERY = "what is written about foxes"
"""Of models that read pairs, where single texts are given."""


@dataclass(frozen=True)
class _Wanted:
    """What the reference computes for some texts, computed once."""

    labels: Sequence[str]
    token_ids: list[list[int]]
    num_picture_tokens: int
    values: list[Array]
    padded: list[Array]


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
    model = _as_served(read_pooling_model(directory, SHAPES[settings.pooling.task]), settings.pooling)
    pictures = sample_pictures() if model.takes_images else []
    shown = pictures if model.shape == "embedder" else []
    chosen = _contents(list(texts) or list(SAMPLE), model, pictures)
    worker = start_pooling_worker(settings, progress)
    progress("Loading the reference", 0.5)
    reference = _reference(directory, model, settings.pooling)
    task = _TASKS[model.shape]
    together, alone = asyncio.run(_served(worker, task, [*chosen, *shown]))
    count = len(chosen)
    progress("Computing the reference", 0.7)
    wanted = _wanted(reference, chosen)
    comparisons = [
        _of_tokens(wanted, directory, model, settings.pooling, chosen),
        *_of_texts(wanted, together[:count], alone[:count], allowed),
        *_of_decisions(wanted, worker.pooling.labels, together[:count], threshold),
        *_of_pictures(reference, shown, together[count:], alone[count:], allowed),
    ]
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


def _as_served(model: PoolingModel, settings: PoolingSettings) -> PoolingModel:
    from chiasm.workers.pooling.facts import adjusted

    return adjusted(model, settings)


def _contents(texts: Sequence[Text], model: PoolingModel, pictures: Sequence[MediaItem]) -> list[Content]:
    """What is sent. Rerankers read pairs, image rankers with a picture each, by turns."""
    if model.shape == "yes_no":
        return [(_QUERY, one) if isinstance(one, str) else one for one in texts]
    if model.shape == "image_ranker":
        pairs = [(one, "") if isinstance(one, str) else one for one in texts]
        return [
            MediaPairInput(first or _QUERY, pictures[number % len(pictures)], second)
            for number, (first, second) in enumerate(pairs)
        ]
    return list(texts)


def _reference(directory: Path, model: PoolingModel, settings: PoolingSettings) -> Any:
    from chiasm.engines.pooling.answer_reference import AnswerReference
    from chiasm.engines.pooling.dual_reference import DualReference
    from chiasm.engines.pooling.ranker_reference import RankerReference
    from chiasm.engines.pooling.reference import HuggingFaceReference

    if model.shape == "yes_no":
        return AnswerReference(directory, model, settings.instruction, (settings.yes_token, settings.no_token))
    if model.shape == "image_ranker":
        return RankerReference(directory, model)
    return DualReference(directory, model) if model.takes_images else HuggingFaceReference(directory, model)


def _wanted(reference: Any, contents: Sequence[Content]) -> _Wanted:
    shown = [_as_reference(one) for one in contents]
    return _Wanted(
        labels=reference.labels,
        token_ids=[reference.token_ids(one) for one in shown],
        num_picture_tokens=getattr(reference, "num_picture_tokens", 0),
        values=reference.values(shown),
        padded=reference.values(shown, is_padded=True),
    )


def _as_reference(content: Content) -> Any:
    if not isinstance(content, MediaPairInput):
        return content
    assert isinstance(content.second, MediaItem), "made by `_contents`"
    return content.first, content.text, open_picture(content.second)


def _of_tokens(
    wanted: _Wanted, directory: Path, model: PoolingModel, settings: PoolingSettings, contents: Sequence[Content]
) -> Comparison:
    from chiasm.engines.pooling.tokens import InputTokenizer
    from chiasm.workers.pooling.facts import pair_template

    template = pair_template(settings) if model.shape == "yes_no" else None
    tokenizer = InputTokenizer(directory, model, max_tokens=model.max_tokens, template=template)
    encoded = tokenizer.encode([_input(one) for one in contents], PoolParams(truncate="end"))
    found = [_ids(one.content) for one in encoded]
    return equal("token ids of each text", found, wanted.token_ids, "against AutoTokenizer")


def _ids(content: Any) -> list[int]:
    """Of a text, or of one that is read with a picture."""
    return list(getattr(content, "tokens", content).ids)


def _of_decisions(
    wanted: _Wanted, labels: Sequence[str], together: Sequence[PoolOutput], threshold: float | None
) -> list[Comparison]:
    if not labels:
        return []
    what = "largest class" if threshold is None else f"classes from {threshold:g} on"
    name = f"{what} of each text, served to transformers"
    return [equal("labels", labels, wanted.labels), decided(name, _values(together), wanted.values, threshold)]


def _of_texts(
    wanted: _Wanted, together: Sequence[PoolOutput], alone: Sequence[PoolOutput], allowed: float
) -> list[Comparison]:
    counts = [len(ids) + wanted.num_picture_tokens for ids in wanted.token_ids]
    return [
        equal("number of tokens of each text", [one.num_tokens for one in together], counts, "against AutoTokenizer"),
        compare("served, all in one batch, to transformers in float32", _values(together), wanted.values, allowed),
        compare("served, one by one, to transformers in float32", _values(alone), wanted.values, allowed),
        compare("served in a batch to served alone", _values(together), _values(alone), _BATCH_TOLERANCE),
        # How much padding alone moves them, for information: nothing is padded here.
        compare("transformers padded to transformers alone", wanted.padded, wanted.values, _ANY),
    ]


def _of_pictures(
    reference: Any,
    pictures: Sequence[MediaItem],
    together: Sequence[PoolOutput],
    alone: Sequence[PoolOutput],
    allowed: float,
) -> list[Comparison]:
    if not pictures:
        return []
    wanted = reference.pictures([open_picture(one) for one in pictures])
    return [
        compare("pictures, all in one request, to transformers in float32", _values(together), wanted, allowed),
        compare("pictures in a request to those alone", _values(together), _values(alone), _BATCH_TOLERANCE),
    ]


async def _served(
    worker: PoolingWorker, task: PoolingTask, contents: Sequence[Content]
) -> tuple[list[PoolOutput], list[PoolOutput]]:
    async def ask(chosen: Sequence[Content], scope: str) -> list[PoolOutput]:
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


def _input(content: Content) -> PoolInput:
    if isinstance(content, MediaPairInput):
        return content
    if isinstance(content, MediaItem):
        return ImageInput(content)
    return TextInput(content) if isinstance(content, str) else PairInput(*content)


def _values(outputs: Sequence[PoolOutput]) -> list[Array]:
    return [one.values for one in outputs]
