"""The engine's thread. All torch work happens on it; others hand it commands and get events through sinks."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from concurrent.futures import Future

import torch

from chiasm.engines.embedded.core import EngineCore
from chiasm.engines.embedded.encoder import EncodeJob, Encoder
from chiasm.engines.embedded.sequence import Sequence
from chiasm.engines.embedded.tower.pause import Pause
from chiasm.errors import ChiasmError, EngineDeadError
from chiasm.protocol.deletion import Deletion
from chiasm.scheduling.turns import Demand, Turn, Turns
from chiasm.settings.slices import SwitchedSlices

logger = logging.getLogger(__name__)

_SLICES_OF_STEPS = 2
"""How long slices are while steps are computed, in those of event loops: these must not wait for a step's end."""


class EngineLoop:
    """Encodes and computes steps, as `Turns` has it, while there is work. Its methods are thread-safe."""

    def __init__(
        self,
        core: EngineCore | None,
        encoder: Encoder | None,
        pause: Pause,
        *,
        threads: int,
        short_slice_s: float = 0.0,
    ) -> None:
        self._core = core
        self._encoder = encoder
        self._pause = pause
        self._threads = threads
        self._turns = Turns()
        self._slices = SwitchedSlices(_SLICES_OF_STEPS * short_slice_s if core is not None else 0.0)
        self._commands: deque[Callable[[], object]] = deque()
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._is_open = True
        self._thread = threading.Thread(target=self._run, name="chiasm-engine", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether new work would be computed."""
        return self._is_open and self._thread.is_alive()

    def submit(self, sequences: Seq[Sequence]) -> None:
        """Queue the choices of one request. Errors, also a dead engine, go to their sinks."""
        core = self._core
        assert core is not None, "an encoder gets no prompts"
        self._post(lambda: _add(core, sequences), lambda error: _fail_all(sequences, error))

    def extend(self, sequences: Seq[Sequence], rows: Seq[torch.Tensor], num_missing_tokens: int) -> None:
        """Hand over rows of the next pictures of a prompt that was submitted without them."""
        core = self._core
        assert core is not None, "an encoder gets no prompts"
        self._post(lambda: core.extend(sequences, rows, num_missing_tokens), lambda error: _fail_all(sequences, error))

    def cancel(self, sequences: Seq[Sequence]) -> None:
        """Drop sequences; their sinks hear nothing more after the engine has seen this."""
        core = self._core
        if core is not None and sequences:
            self._post(lambda: _cancel(core, sequences), lambda _: None)

    def encode(self, job: EncodeJob) -> None:
        """Queue a picture."""
        encoder = self._encoder
        assert encoder is not None, "a worker without an encoder gets no pictures"
        self._post(lambda: encoder.add(job), job.done)

    def cancel_encode(self, job: EncodeJob) -> None:
        """Drop a picture that nobody waits for any more."""
        encoder = self._encoder
        if encoder is not None:
            self._post(lambda: encoder.cancel(job), lambda _: None)

    def forget(self, deletion: Deletion) -> "Future[tuple[int, int]]":
        """Delete prefix blocks between two steps; the result is how many went, and how many are pinned."""
        core, future = self._core, Future[tuple[int, int]]()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                future.set_result(core.forget(deletion) if core is not None else (0, 0))

        self._post(run, future.set_exception)
        return future

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the thread; what is still open fails with `EngineDeadError`."""
        with self._lock:
            self._is_open = False
        self._wake.set()
        self._thread.join(timeout_s)

    def _post(self, command: Callable[[], object], refuse: Callable[[ChiasmError], object]) -> None:
        with self._lock:
            is_open = self._is_open
            if is_open:
                self._commands.append(command)
        if is_open:
            self._pause.ask()
            self._wake.set()
        else:
            refuse(EngineDeadError("The engine has stopped", hint="Restart the server; its log says why it stopped."))

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        self._slices.shorten()
        try:
            while self._is_open:
                self._turn()
        except Exception:
            logger.exception("The engine's loop has failed")
        finally:
            self._close()

    def give_way(self) -> None:
        """Compute one step if a text waits for it. The tower calls this between two pieces, on the engine's thread."""
        self._pause.clear()
        self._obey()
        core, start_s = self._core, time.perf_counter()
        if core is None or not self._turns.may_interrupt(core.scheduler.demand):
            return
        self._pause.ask()  # for the next step
        if not self._turns.owes_batch(start_s):
            self._slices.shorten()
            core.step()
            self._slices.lengthen()
            self._turns.interrupted(start_s, time.perf_counter())
            if self._encoder is not None:
                self._encoder.paused(time.perf_counter() - start_s)

    def _obey(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _turn(self) -> None:
        self._obey()
        core, encoder = self._core, self._encoder
        demand = core.scheduler.demand if core is not None else Demand.NOTHING
        turn = self._turns.next(demand, has_pictures=encoder is not None and encoder.num_waiting > 0)
        if turn is Turn.ENCODE and encoder is not None:
            self._slices.lengthen()
            encoder.encode_some()
            self._slices.shorten()
        elif turn is Turn.STEP and core is not None:
            core.step()
        elif not self._commands:
            self._wake.wait(timeout=1.0)
            self._wake.clear()

    def _close(self) -> None:
        with self._lock:
            self._is_open = False
        self._obey()
        error = EngineDeadError("The engine has stopped")
        if self._encoder is not None:
            self._encoder.fail_all(error)
        if self._core is not None:
            self._core.fail_all(error)
            self._core.close()


def _add(core: EngineCore, sequences: Seq[Sequence]) -> None:
    for sequence in sequences:
        try:
            core.add(sequence)
        except ChiasmError as error:
            sequence.sink.fail(error)


def _cancel(core: EngineCore, sequences: Seq[Sequence]) -> None:
    for sequence in sequences:
        core.cancel(sequence)


def _fail_all(sequences: Seq[Sequence], error: ChiasmError) -> None:
    for sequence in sequences:
        sequence.sink.fail(error)
