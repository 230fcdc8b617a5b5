"""How far a pooling model's numbers move when its pictures are prepared fast."""

import asyncio
import hashlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from chiasm.errors import InvalidSettingError
from chiasm.launch.pooling import start_pooling_worker
from chiasm.media.picture.header import read_header
from chiasm.pooling.parity import Array, compare
from chiasm.pooling.ranking import ranked
from chiasm.protocol.media import InlineSource, MediaItem
from chiasm.protocol.pooling.work import ImageInput, MediaPairInput, PoolingTask, PoolingWorker, PoolParams, PoolRequest
from chiasm.settings import Settings


class ScoreMovement(msgspec.Struct, frozen=True, kw_only=True):
    """One picture, prepared exactly and fast.

    Scores are those of the picture for the text, `cosine` that of the two embeddings; None where the model, or no
    text, gives none.
    """

    file: str
    exact_score: float | None = None
    fast_score: float | None = None
    cosine: float | None = None


class MovementSummary(msgspec.Struct, frozen=True, kw_only=True):
    """All pictures together; None where the model, or no text, gives no numbers, and for the ranking of one picture.

    `num_moved` pictures have another place when they are ranked by their scores; `rank_agreement` is the share of pairs
    in the same order.
    """

    num_pictures: int
    max_difference: float | None = None
    mean_difference: float | None = None
    num_moved: int | None = None
    rank_agreement: float | None = None
    least_cosine: float | None = None


def summary_of(rows: Sequence[ScoreMovement]) -> MovementSummary:
    """Sum up how far scores, their ranking and embeddings move."""
    cosines = [row.cosine for row in rows if row.cosine is not None]
    summary = MovementSummary(num_pictures=len(rows), least_cosine=min(cosines, default=None))
    exact = [row.exact_score for row in rows if row.exact_score is not None]
    fast = [row.fast_score for row in rows if row.fast_score is not None]
    if not exact:
        return summary
    found = compare("scores", _as_arrays(fast), _as_arrays(exact), math.inf)
    places = zip(ranked(exact), ranked(fast), strict=True)
    return replace(
        summary,
        max_difference=found.max_difference,
        mean_difference=found.mean_difference,
        num_moved=None if found.rank_agreement is None else sum(one != other for one, other in places),
        rank_agreement=found.rank_agreement,
    )


def _as_arrays(scores: Sequence[float]) -> list[Array]:
    return [np.array([score], np.float32) for score in scores]


def score_movements(
    directory: Path, files: Sequence[Path], text: str, settings: Settings, progress: Callable[[str, float], None]
) -> list[ScoreMovement]:
    """Compute pictures both ways, each by itself; `progress` is told of both starts. Blocks.

    Raises:
        InvalidSettingError: The model only scores, and there is no text.
        MediaError: A picture is broken or beyond a limit.
        EngineStartError: The model cannot be served.
    """
    items = [_item(file.read_bytes()) for file in files]
    engine = replace(settings.engine, model=str(directory))
    columns = []
    for preparation in ("exact", "fast"):
        chosen = replace(settings, engine=engine, media=replace(settings.media, preparation=preparation))
        columns.append(asyncio.run(_computed(start_pooling_worker(chosen, progress), items, text)))
    return [
        ScoreMovement(file=str(file), exact_score=exact[0], fast_score=fast[0], cosine=_cosine(exact[1], fast[1]))
        for file, exact, fast in zip(files, *columns, strict=True)
    ]


_Numbers = tuple[float | None, Array | None]


async def _computed(worker: PoolingWorker, items: Sequence[MediaItem], text: str) -> list[_Numbers]:
    tasks = worker.pooling.tasks
    try:
        if not text and "embed" not in tasks:
            raise InvalidSettingError("This model scores pictures for a text", hint='Name one: --ask "a red chair"')
        return [
            (
                float((await _asked(worker, "score", MediaPairInput(text, item)))[0]) if text else None,
                await _asked(worker, "embed", ImageInput(item)) if "embed" in tasks else None,
            )
            for item in items
        ]
    finally:
        await worker.aclose()


async def _asked(worker: PoolingWorker, task: PoolingTask, one: ImageInput | MediaPairInput) -> Array:
    request = PoolRequest(request_id="parity", task=task, inputs=(one,), params=PoolParams(truncate="end"))
    return (await worker.pool(request)).outputs[0].values


def _cosine(exact: Array | None, fast: Array | None) -> float | None:
    if exact is None or fast is None:
        return None
    a, b = exact.astype(np.float64), fast.astype(np.float64)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def _item(data: bytes) -> MediaItem:
    header = read_header(data)
    return MediaItem(
        identity=hashlib.sha256(data).hexdigest(),
        format=header.format,
        width=header.width,
        height=header.height,
        source=InlineSource(data),
    )
