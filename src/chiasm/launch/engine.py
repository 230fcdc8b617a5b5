"""Settings to a worker with the embedded engine, in this process."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec

from chiasm.connectors.base import Transport
from chiasm.errors import MissingExtraError
from chiasm.launch.model import model_directory, served_name
from chiasm.media.prepare.base import ImagePreparer
from chiasm.protocol.worker import Role, Worker
from chiasm.settings import Settings
from chiasm.settings.process import prepare_threads

Progress = Callable[[str, float], None]
"""Called while a model loads: what is being done, and the share (0 to 1) that is complete."""


def start_worker(
    settings: Settings,
    progress: Progress,
    *,
    name: str = "local",
    roles: Sequence[Role] = ("encode", "prefill", "decode"),
    transport: Transport | None = None,
) -> tuple[Worker, ImagePreparer | None]:
    """Load the model into a worker of this process; also returns how it wants pictures prepared.

    Args:
        settings: All sections.
        progress: Told how the start goes.
        name: The worker's name.
        roles: Stages that it computes.
        transport: For tensors from and to other workers; closed with the worker.

    Raises:
        MissingExtraError: The embedded engine's packages are not installed.
        EngineStartError: The model cannot be served.
    """
    if find_spec("torch") is None or find_spec("transformers") is None:
        raise MissingExtraError(
            "The embedded engine needs torch and transformers", hint="pip install 'chiasm[embedded]'"
        )
    directory = model_directory(settings.engine.model)
    progress("Loading torch", 0.0)
    prepare_threads()
    from chiasm.workers.local import LocalWorker

    worker = LocalWorker.start(
        directory,
        served_name(settings.engine),
        settings.engine,
        settings.media,
        progress,
        roles=roles,
        name=name,
        transport=transport,
        transfer=settings.transfer,
        adapters=settings.adapters,
    )
    return worker, worker.preparer


def native_kernels() -> str | None:
    """The instruction set that the native decoder uses here; None where it was not built."""
    from chiasm.engines.embedded.decoder.native_decoder import kernels_for

    return kernels_for(64)


def packing_works(dtype: str) -> bool:
    """Whether this build of torch can reorder weights of a dtype and still give the same results."""
    import torch

    from chiasm.engines.embedded.decoder.torch_linear import packing_works as works

    return works(getattr(torch, dtype))
