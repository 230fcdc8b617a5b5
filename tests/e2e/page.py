"""A page of docs as a reader has it: its commands in order, typed into a shell, with servers that run meanwhile."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
ADDRESS = "http://127.0.0.1:8000"
START_TIMEOUT_S = 150
RUN_TIMEOUT_S = 150
STOP_TIMEOUT_S = 60
_SERVED = re.compile(r" is served on (http://\S+) ")


def blocks(page: Path, language: str) -> dict[str, list[str]]:
    """The blocks of a language by the heading that they stand below, both in the order of the page."""
    found: dict[str, list[str]] = {}
    for section in page.read_text("utf-8").split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        parts = text.split("```")[1::2]
        found[title] = [part.removeprefix(language + "\n") for part in parts if part.startswith(language + "\n")]
    return found


def commands(page: Path) -> dict[str, list[str]]:
    """The commands of the console blocks by heading; lines that end in a backslash go on."""
    return {
        title: [line for block in found for line in block.replace("\\\n", " ").splitlines() if line]
        for title, found in blocks(page, "console").items()
    }


@dataclass(frozen=True)
class Done:
    """What a command has printed."""

    output: str
    log: str


class Server:
    """A command that goes on until Ctrl+C, in a terminal of its own: a group of processes."""

    def __init__(self, command: str, folder: Path, environment: dict[str, str], log: Path) -> None:
        self.command = command
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                ["/bin/bash", "-c", f"exec {command}"],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self.address = self.wait_for(_SERVED)[1]
        except BaseException:
            self.kill()
            raise

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8", errors="replace")

    def wait_for(self, pattern: re.Pattern[str], times: int = 1) -> re.Match[str]:
        """The match that is number `times` in what the server says; fails when it ends or is too late."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            was_running = self.is_running
            found = list(pattern.finditer(self.log))
            if len(found) >= times:
                return found[times - 1]
            assert was_running, f"'{self.command}' has ended:\n{self.log}"
            assert time.monotonic() < deadline_s, f"'{self.command}' does not say {pattern.pattern}:\n{self.log}"
            time.sleep(0.05)

    def stop(self) -> int:
        """Press Ctrl+C; returns the exit status."""
        try:
            if self.is_running:
                os.killpg(self._process.pid, signal.SIGINT)
            return self._process.wait(timeout=STOP_TIMEOUT_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """Leave nothing of it behind."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=STOP_TIMEOUT_S)


@dataclass
class Reader:
    """Types a page's commands; `words` holds what stands for something that only the reader knows."""

    folder: Path
    words: dict[str, str] = field(default_factory=dict)
    server: Server | None = None
    num_servers: int = 0

    @property
    def environment(self) -> dict[str, str]:
        # The page calls .venv/bin/chiasm `chiasm`, and port 8000 may be another's here.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return os.environ | {"PATH": path, "CHIASM_GATEWAY__PORT": "0"}

    def serve(self, command: str) -> Server:
        """Stop the server that runs, as the page says, and start another."""
        self.stop()
        self.num_servers += 1
        self.server = Server(command, self.folder, self.environment, self.folder / f"server-{self.num_servers}.log")
        return self.server

    def have(self, command: str) -> Server:
        """The server of an earlier command: the one that runs, or a new one where a test begins with this section."""
        if self.server is None or self.server.command != command or not self.server.is_running:
            return self.serve(command)
        return self.server

    def stop(self) -> None:
        """Press Ctrl+C in the server's terminal; fails when the server does not end well."""
        server, self.server = self.server, None
        if server is not None:
            assert server.stop() == 0, server.log

    def run(self, command: str, *, expect: tuple[int, ...] = (0,)) -> Done:
        """Type a command and wait for its end; fails for another exit status."""
        typed = command
        if self.server is not None:
            typed = typed.replace(ADDRESS, self.server.address)
        for word, meant in self.words.items():
            typed = re.sub(rf"\b{word}\b", shlex.quote(meant), typed)
        done = subprocess.run(
            ["/bin/bash", "-c", typed],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode in expect, f"'{command}' ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return Done(done.stdout.strip(), done.stderr.strip())
