"""One machine, one process: settings to a model, a gateway and a listening socket."""

import asyncio
import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import uvloop

from chiasm.errors import MissingExtraError
from chiasm.gateway import create_app
from chiasm.launch.model import model_directory, served_name
from chiasm.launch.server import address_of, bind, serve_app
from chiasm.media.ingest import MediaIngest
from chiasm.media.prepare.base import ImagePreparer
from chiasm.protocol.worker import Worker
from chiasm.settings import Settings
from chiasm.settings.process import prepare_threads

Progress = Callable[[str, float], None]
"""Called while a model loads: what is being done, and the share (0 to 1) that is complete."""

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 60.0


class LocalServer:
    """A model behind HTTP, not yet listening. Binding and loading happen in the constructor.

    Attributes:
        address: URL of the server, as seen from this machine.
    """

    def __init__(self, settings: Settings, progress: Progress) -> None:
        """Take the port, then load the model.

        Raises:
            InvalidSettingError: The address cannot be listened on.
            MissingExtraError: The embedded engine's packages are not installed.
            EngineStartError: The model cannot be served.
        """
        self._settings = settings
        self._listener = bind(settings.gateway.host, settings.gateway.port)
        self.address = address_of(self._listener)
        try:
            self._worker, self._preparer = start_worker(settings, progress)
        except BaseException:
            self._listener.close()
            raise

    @property
    def model(self) -> str:
        """The name under which the model is served."""
        return self._worker.info.model

    @property
    def takes_images(self) -> bool:
        """Whether the model has eyes."""
        return self._worker.info.takes_images

    async def serve(self, stop: asyncio.Event, on_ready: Callable[[], None]) -> None:
        """Serve until `stop` is set; drains, then closes everything. May be called once."""
        ingest = MediaIngest(self._settings.media, self._preparer)
        app = create_app(self._worker, ingest, self._settings.gateway)
        try:
            await serve_app(app, app.state.gateway, self._listener, self._settings.gateway, stop, on_ready)
        finally:
            await ingest.aclose()
            await self._worker.aclose()


def serve(settings: Settings, progress: Progress, on_ready: Callable[[LocalServer], None]) -> None:
    """Run a server in this thread until SIGTERM or SIGINT; a second signal ends the drain at once."""
    server = LocalServer(settings, progress)
    gc.collect()
    gc.freeze()  # what a loaded model consists of need not be walked again and again

    async def until_signal() -> None:
        stop, task, loop = asyncio.Event(), asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: task.cancel() if stop.is_set() else stop.set())
        await server.serve(stop, lambda: on_ready(server))

    try:
        uvloop.run(until_signal())
    except asyncio.CancelledError:
        return


@contextmanager
def background_server(settings: Settings, progress: Progress) -> Iterator[LocalServer]:
    """Run a server in another thread inside the block, for programs that want one for themselves."""
    server = LocalServer(settings, progress)
    loop = uvloop.new_event_loop()
    stop, ready = asyncio.Event(), threading.Event()

    def run() -> None:
        try:
            loop.run_until_complete(server.serve(stop, ready.set))
        finally:
            ready.set()
            loop.close()

    thread = threading.Thread(target=run, name="chiasm-server", daemon=True)
    thread.start()
    try:
        ready.wait(_START_TIMEOUT_S)
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(_STOP_TIMEOUT_S)


def native_kernels() -> str | None:
    """The instruction set that the native decoder uses here; None where it was not built."""
    from chiasm.engines.embedded.decoder.native_decoder import kernels_for

    return kernels_for(64)


def packing_works(dtype: str) -> bool:
    """Whether this build of torch can reorder weights of a dtype and still give the same results."""
    import torch

    from chiasm.engines.embedded.decoder.torch_linear import packing_works as works

    return works(getattr(torch, dtype))


def start_worker(settings: Settings, progress: Progress) -> tuple[Worker, ImagePreparer | None]:
    """Load the model into a worker of this process; also returns how it wants pictures prepared.

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

    worker = LocalWorker.start(directory, served_name(settings.engine), settings.engine, settings.media, progress)
    return worker, worker.preparer
