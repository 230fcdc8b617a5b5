"""A peer's process, started in a session of its own and asked over pipes."""

import json
import os
import select
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import machine

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 900.0
# Keeps libraries off the network; vLLM stays in this process with a cache of its own choice of threads.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "PYTHONPATH": str(ROOT),
}


class PeerError(Exception):
    """The peer could not do it."""


class PeerProcess:
    """One engine, loaded once. Use as a context manager."""

    def __init__(self, name: str, command: list[str], threads: int) -> None:
        self.name = name
        self._log = tempfile.NamedTemporaryFile("w+", prefix=f"peer-{name}-", suffix=".log")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
            env=os.environ | ENVIRONMENT | {"OMP_NUM_THREADS": str(threads)},  # noqa: TID251 - a child's environment
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        self.is_preferred = machine.prefer(self._process.pid)
        self.versions: dict[str, str] = {}

    def load(self, model: Path, dtype: str, threads: int) -> None:
        """Load a model directory."""
        self.versions = self.ask(op="load", model=str(model), dtype=dtype, threads=threads)["versions"]

    def ask(self, **operation: Any) -> dict[str, Any]:
        """Do one operation; the answer has `wall_s` and `cpu_s`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(operation) + "\n")
        deadline = time.monotonic() + TIMEOUT_S
        ready, _, _ = select.select([self._process.stdout], [], [], deadline - time.monotonic())
        line = self._process.stdout.readline() if ready else ""
        if not line:
            raise PeerError(f"{self.name} gave no answer; the end of its log:\n{self._tail()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _tail(self) -> str:
        return Path(self._log.name).read_text(errors="replace")[-1500:]

    def __enter__(self) -> "PeerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
