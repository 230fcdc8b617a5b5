"""The thread that computes. Requests come in at any time; each batch takes what fits of what waits then."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

import torch

from chiasm.engines.pooling.runner import Array, PoolingInput, PoolingRunner, costs
from chiasm.errors import ChiasmError, EngineDeadError, EngineStepError
from chiasm.pooling.batching import WaitingRequest, choose

logger = logging.getLogger(__name__)


class PoolingWork(WaitingRequest):
    """One request's inputs on their way through the engine.

    Attributes:
        rows: What came out, by number of the input; complete when `on_end` is called without an error.
        started_s: When its first batch began, on `time.perf_counter`'s clock; 0 before.
        ended_s: When its last batch ended.
    """

    def __init__(self, inputs: Sequence[PoolingInput], on_end: Callable[[ChiasmError | None], None]) -> None:
        super().__init__(time.perf_counter(), costs(inputs))
        self.inputs = inputs
        self.on_end = on_end
        self.rows: list[Array | None] = [None] * len(inputs)
        self.num_uncomputed = len(inputs)
        self.started_s = 0.0
        self.ended_s = 0.0

    def finished_rows(self) -> list[Array]:
        """Of every input, once it has ended without an error."""
        return [row for row in self.rows if row is not None]


class PoolingLoop:
    """Owns the runner's thread. Its methods are thread-safe; `on_end` is called on the thread, once per request."""

    def __init__(
        self,
        runner: PoolingRunner,
        *,
        max_batch_tokens: int,
        max_delay_s: float,
        threads: int,
        is_crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        self._runner = runner
        self._max_batch_tokens = max_batch_tokens
        self._max_delay_s = max_delay_s
        self._threads = threads
        self._is_crowded = is_crowded
        self._open: list[PoolingWork] = []
        self._condition = threading.Condition()
        self._is_stopping = False
        self.num_batches = 0
        self.num_inputs = 0
        self.num_tokens = 0
        self._thread = threading.Thread(target=self._run, name="chiasm-pooling", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether new work would be computed."""
        return not self._is_stopping and self._thread.is_alive()

    @property
    def weight_bytes(self) -> int:
        """What the model's weights take."""
        return self._runner.weight_bytes

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._open)

    @property
    def num_waiting_tokens(self) -> int:
        """Tokens that no batch has taken yet."""
        with self._condition:
            return sum(work.num_tokens_left for work in self._open)

    def submit(self, work: PoolingWork) -> None:
        """Queue a request of at least one input."""
        with self._condition:
            is_alive = self.is_alive
            if is_alive:
                self._open.append(work)
                self._condition.notify()
        if not is_alive:
            work.on_end(dead())

    def cancel(self, work: PoolingWork) -> None:
        """Drop what is not computed yet; `on_end` is not called any more unless it has been already."""
        with self._condition:
            if work in self._open:
                self._open.remove(work)

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the thread after its batch; what is still open fails with `EngineDeadError`."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        try:
            while (chosen := self._next()) is not None:
                self._compute(chosen)
        finally:
            with self._condition:
                self._is_stopping = True
            self._fail(list(self._open), dead())
            self._runner.close()

    def _next(self) -> list[tuple[PoolingWork, int]] | None:
        with self._condition:
            while not self._is_stopping:
                chosen = choose(self._open, self._max_batch_tokens, time.perf_counter(), self._max_delay_s)
                if chosen:
                    return chosen
                self._condition.wait(timeout=1.0)
        return None

    def _compute(self, chosen: list[tuple[PoolingWork, int]]) -> None:
        works = list({id(work): work for work, _ in chosen}.values())
        started_s = time.perf_counter()
        for work in works:
            work.started_s = work.started_s or started_s
        try:
            inputs = [work.inputs[number] for work, number in chosen]
            rows = self._runner.run(inputs, is_crowded=self._is_crowded())
        except Exception:
            logger.exception("A pooling batch has failed")
            self._fail(works, EngineStepError("The batch with this request failed", hint="Send the request again"))
            return
        ended_s = time.perf_counter()
        for (work, number), row in zip(chosen, rows, strict=True):
            work.rows[number] = row
            work.num_uncomputed -= 1
        self.num_batches += 1
        self.num_inputs += len(chosen)
        self.num_tokens += sum(work.lengths[number] for work, number in chosen)
        for work in works:
            if work.num_uncomputed == 0:
                work.ended_s = ended_s
                self._end(work, None)

    def _fail(self, works: Sequence[PoolingWork], error: ChiasmError) -> None:
        for work in works:
            self._end(work, error)

    def _end(self, work: PoolingWork, error: ChiasmError | None) -> None:
        with self._condition:
            is_open = work in self._open
            if is_open:
                self._open.remove(work)
        if is_open:
            work.on_end(error)


def dead() -> EngineDeadError:
    """What becomes of work for a loop that has ended."""
    return EngineDeadError("The engine has stopped", hint="Restart the server; its log says why it stopped")
