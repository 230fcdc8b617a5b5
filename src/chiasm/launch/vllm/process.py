"""One vLLM server as its owner sees it."""

import http.client
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from chiasm.errors import EngineStartError
from chiasm.launch.processes.pidfd import process_ended
from chiasm.launch.vllm import guard
from chiasm.launch.vllm.scratch import note_segments
from chiasm.launch.vllm.startup import reason_of, step_of
from chiasm.settings.niceness import session_steps_back

logger = logging.getLogger(__name__)
_TAIL_LINES = 60
_SHOWN_LINES = 20
_LOOK_INTERVAL_S = 0.2
_LOOK_TIMEOUT_S = 5.0
_KILL_TIMEOUT_S = 10.0
_TIDY_TIMEOUT_S = 3.0


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """How to start a server: its command line and environment, where it will listen, how long it may take.

    `address` is `unix:` and a path, or `http://host:port`; `niceness` is how far all of it steps back
    once it answers. In `scratch`, a folder, it is then listed what memory its processes share.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    address: str
    start_timeout_s: float
    stop_timeout_s: float
    niceness: int = 0
    scratch: Path | None = None


class VllmProcess:
    """Implements `chiasm.launch.processes.base.Process`. Starts at once, behind a guard that ends with its owner.

    Attributes:
        address: Where it listens, for `VllmWorker`.
    """

    def __init__(self, name: str, command: Command) -> None:
        self.name = name
        self.address = command.address
        self.started_s = time.monotonic()
        self._command = command
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._steps: queue.SimpleQueue[tuple[str, float]] = queue.SimpleQueue()
        self._process = subprocess.Popen(  # noqa: S603 - the interpreter that the operator names, with vLLM's server
            [sys.executable, guard.__file__, str(command.stop_timeout_s), *command.arguments],
            stdin=subprocess.PIPE,  # stays open: its end tells the guard that we are gone
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(command.environment),
            start_new_session=True,
            umask=0o077 if self.address.startswith("unix:") else -1,  # its socket asks nobody for a key
        )
        self._reader = threading.Thread(target=self._read, name=f"chiasm-log-{name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The guard's number, which is that of the server's process group."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def wait_ready(self, progress: Callable[[str, float], None]) -> None:
        """Wait until it takes calls.

        Raises:
            EngineStartError: It ended or took too long; it has been stopped. The message says why, the hint what to do.
        """
        deadline_s = self.started_s + self._command.start_timeout_s
        try:
            while not is_healthy(self.address):
                self._pass_on(progress)
                if not self.is_alive:
                    raise self._failure()
                if time.monotonic() > deadline_s:
                    raise EngineStartError(
                        f"vLLM server {self.name} was not ready after {self._command.start_timeout_s:.0f} s",
                        hint="Raise vllm.start_timeout_s, or look at its log with --log-level debug",
                    )
                time.sleep(_LOOK_INTERVAL_S)
        except BaseException:
            self.kill()
            raise
        session_steps_back(self.pid, self._command.niceness)
        if self._command.scratch is not None:
            note_segments(self._command.scratch, self.pid)
        self._pass_on(progress)

    async def ended(self) -> None:
        """Wait for its end."""
        await process_ended(self.pid, lambda: self.is_alive)

    def terminate(self) -> None:
        """Ask it to end."""
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
        """End it now, with all that it has started."""
        self._process.send_signal(signal.SIGUSR1)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_TIDY_TIMEOUT_S)
        with suppress(ProcessLookupError):  # the guard does that; unless it is stuck, or was killed itself
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(_KILL_TIMEOUT_S)
        self._close()

    def _pass_on(self, progress: Callable[[str, float], None]) -> None:
        while not self._steps.empty():
            what, share = self._steps.get_nowait()
            progress(f"{self.name}: {what}", share)

    def _failure(self) -> EngineStartError:
        self._reader.join(_LOOK_TIMEOUT_S)
        log = list(self._tail)
        for line in log[-_SHOWN_LINES:]:
            logger.error("%s: %s", self.name, line)
        reason = reason_of(log)
        return EngineStartError(f"vLLM server {self.name} did not start. {reason.message}", hint=reason.hint)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for raw in lines:
                line = raw.decode(errors="replace").rstrip()
                self._tail.append(line)
                logger.debug("%s: %s", self.name, line)
                if (step := step_of(line)) is not None:
                    self._steps.put(step)

    def _close(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        if self.address.startswith("unix:"):
            Path(self.address.removeprefix("unix:")).unlink(missing_ok=True)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("vllm", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def connection_to(address: str, timeout_s: float) -> http.client.HTTPConnection:
    """A connection, not made yet, to `unix:` and a path, or to `http://host:port`."""
    if address.startswith("unix:"):
        return _UnixConnection(address.removeprefix("unix:"), timeout_s)
    return http.client.HTTPConnection(urlsplit(address).netloc, timeout=timeout_s)


def is_healthy(address: str) -> bool:
    """Whether a server says that its engine is well."""
    connection = connection_to(address, _LOOK_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
