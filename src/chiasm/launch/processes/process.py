"""One worker process as its owner sees it."""

import contextlib
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import msgspec

from chiasm.errors import ChiasmError, EngineStartError, error_class
from chiasm.launch.processes.messages import Failed, Load, Loading, Order, Ready, Report
from chiasm.launch.processes.pidfd import process_ended
from chiasm.settings.process import environment_for_arithmetic

_COMMAND = (sys.executable, "-m", "chiasm.launch.processes.child")
START_TIMEOUT_S = 180.0
_KILL_TIMEOUT_S = 10.0
_MAX_REPORTS = 1000


class WorkerProcess:
    """Starts at once. Use from one thread at a time; calls block.

    Attributes:
        address: Where it listens, for `RemoteWorker`.
        load: What it reported last, if it is a gateway.
    """

    def __init__(self, order: Order, program: str = "") -> None:
        """Give the order to a module that is run, by default the one that runs a worker."""
        self.load: Load | None = None
        self.name = order.spec.name
        self.address = order.spec.address
        self.started_s = time.monotonic()
        self._reports: queue.Queue[Report | None] = queue.Queue(_MAX_REPORTS)
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter with our own program
            (sys.executable, "-m", program) if program else _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment_for_arithmetic(),  # None: as ours is
            start_new_session=True,
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already: `wait_ready` says so
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            self._process.stdin.flush()  # and stays open: its end tells the process that we are gone
        threading.Thread(target=self._read, name=f"chiasm-reports-{self.name}", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def wait_ready(self, progress: Callable[[str, float], None], timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until it listens.

        Raises:
            EngineStartError: It ended, reported a failure or took too long; it has been stopped.
            ChiasmError: The error that it reported.
        """
        deadline_s = time.monotonic() + timeout_s
        try:
            while not isinstance(report := self._next(deadline_s), Ready):
                if isinstance(report, Failed):
                    raise _rebuilt(report)
                if isinstance(report, Loading):
                    progress(f"{self.name}: {report.what}", report.share)
            self.address = report.address or self.address
        except BaseException:
            self.kill()
            raise

    async def ended(self) -> None:
        """Wait for its end."""
        await process_ended(self.pid, lambda: self.is_alive)

    def tell(self, message: msgspec.Struct) -> None:
        """Say something to a program that listens after its order. One that has ended does not hear it."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            self._process.stdin.flush()

    def terminate(self) -> None:
        """Ask it to drain and end."""
        self._process.terminate()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended; False when the time runs out first."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._close()
        return True

    def kill(self) -> None:
        """End it now."""
        self._process.kill()
        self._process.wait(_KILL_TIMEOUT_S)
        self._close()

    def _next(self, deadline_s: float) -> Report:
        try:
            report = self._reports.get(timeout=max(0.0, deadline_s - time.monotonic()))
        except queue.Empty:
            raise EngineStartError(f"Worker {self.name} was not ready in time", hint="See its log above") from None
        if report is None:
            raise EngineStartError(f"Worker {self.name} ended while it started", hint="See its log above")
        return report

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines, contextlib.suppress(ValueError):  # not a report: it is not our worker
            for line in lines:
                report = msgspec.json.decode(line, type=Report)
                if isinstance(report, Load):
                    self.load = report
                    continue
                with contextlib.suppress(queue.Full):  # nobody waits for reports of a worker that is up
                    self._reports.put_nowait(report)
        with contextlib.suppress(queue.Full):
            self._reports.put_nowait(None)

    def _close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # nobody reads any more
            self._process.stdin.close()


def _rebuilt(failed: Failed) -> ChiasmError:
    return error_class(failed.code)(failed.message, hint=failed.hint)
