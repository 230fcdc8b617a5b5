"""Settings to a server that pools: which model directories that means, and the worker for them."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec

from chiasm.errors import InvalidSettingError, MissingExtraError
from chiasm.gateway.state import Ingest
from chiasm.launch.model import model_directory, served_name
from chiasm.media.ingest import MediaIngest
from chiasm.media.prepare.registry import preparer_for
from chiasm.pooling.model_files import Shape, is_pooling_directory, read_pooling_model
from chiasm.protocol.pooling.work import PoolingWorker
from chiasm.protocol.worker import Worker
from chiasm.settings import Settings
from chiasm.settings.process import prepare_threads

SHAPES: dict[str, Shape | None] = {
    "auto": None,
    "embed": "embedder",
    "classify": "sequence_classifier",
    "token_classify": "token_classifier",
    "late_interaction": "late_interaction",
    "yes_no": "yes_no",
}
"""`pooling.task` -> what the model is served as; None: what its files say."""


def wants_pooling(settings: Settings) -> bool:
    """Whether `pooling.task`, or left to itself the model's files, ask for pooling. Raises `EngineStartError`."""
    task = settings.pooling.task
    if task == "generate" or not (settings.engine.model or task != "auto"):
        return False
    return task != "auto" or is_pooling_directory(model_directory(settings.engine.model))


class PoolingInProcess:
    """A `Backend` with one pooling worker in this process."""

    def __init__(self, settings: Settings, progress: Callable[[str, float], None]) -> None:
        """Load the model.

        Raises:
            InvalidSettingError: A topology was asked for.
            MissingExtraError: The embedded engine's packages are not installed.
            EngineStartError: The model cannot be served.
        """
        _check_topology(settings)
        self._media = settings.media
        self._worker = start_pooling_worker(settings, progress)
        takes_images = self._worker.pooling.takes_images
        self._preparer = preparer_for(model_directory(settings.engine.model)) if takes_images else None

    @property
    def model(self) -> str:
        """See `Backend`."""
        return self._worker.info.model

    @property
    def takes_images(self) -> bool:
        """See `Backend`."""
        return False

    @property
    def tasks(self) -> Sequence[str]:
        """What the model is served for."""
        return self._worker.pooling.tasks

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[Worker, Ingest]]:
        """See `Backend`."""
        ingest = MediaIngest(self._media, self._preparer)
        try:
            yield self._worker, ingest
        finally:
            await ingest.aclose()
            await self._worker.aclose()


def start_pooling_worker(settings: Settings, progress: Callable[[str, float], None]) -> PoolingWorker:
    """Load a model into a pooling worker of this process. Raises `MissingExtraError` or `EngineStartError`."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        raise MissingExtraError(
            "The embedded engine needs torch and transformers", hint="pip install 'chiasm[embedded]'"
        )
    directory = model_directory(settings.engine.model)
    model = read_pooling_model(directory, SHAPES[settings.pooling.task])
    progress("Loading torch", 0.0)
    prepare_threads()
    from chiasm.workers.pooling import LocalPoolingWorker

    return LocalPoolingWorker.start(
        directory, served_name(settings.engine), model, settings.engine, settings.pooling, settings.media, progress
    )


def _check_topology(settings: Settings) -> None:
    if settings.routing.topology != "local":
        raise InvalidSettingError(
            f"A pooling model runs in one process; topology is '{settings.routing.topology}'",
            hint="Use topology local, and start several servers behind a load balancer for more",
        )
