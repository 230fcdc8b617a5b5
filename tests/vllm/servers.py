"""One vLLM server by its flags: started, waited for, and ended with all its processes."""

import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
MODEL = REPOSITORY / "src/chiasm/models/tiny_vlm"
START_S = 800.0
_STOP_S = 20.0
_LOG_TAIL_LINES = 25
CHEAP_START = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1"}
"""An engine that is not split computes in its scheduler's process: a start is the import of vLLM in each of them."""
_ENVIRONMENT = CHEAP_START | {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(REPOSITORY / "src"),
}


def vllm_python() -> Path:
    """The interpreter of the environment that has vLLM: `CHIASM_VLLM_PYTHON`, or the one `make test-vllm` makes."""
    return Path(os.environ.get("CHIASM_VLLM_PYTHON", str(REPOSITORY / ".venv-vllm/bin/python")))


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class VllmServer:
    """A running server. `url` is its root; its log is in `log_path`."""

    def __init__(self, process: subprocess.Popen[bytes] | None, port: int, log_path: Path) -> None:
        self.process = process  # None when somebody else looks after it
        self.port = port
        self.log_path = log_path
        self.url = f"http://127.0.0.1:{port}"

    @property
    def is_alive(self) -> bool:
        """Whether the server's process runs and says that its engine is healthy."""
        if self.process is not None and self.process.poll() is not None:
            return False
        try:
            return self.request("GET", "/health", timeout_s=20)[0] == 200
        except OSError:
            return False

    def log(self) -> str:
        """What it has printed so far."""
        return self.log_path.read_text(errors="replace")

    def request(self, method: str, path: str, body: object = None, *, timeout_s: float = 120) -> tuple[int, bytes]:
        """One call on a connection of its own; returns status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def chat(self, messages: list[dict[str, Any]], **fields: object) -> tuple[int, dict[str, Any]]:
        """A chat completion that is not streamed; returns status and decoded body."""
        body = {"model": "tiny_vlm", "temperature": 0, "messages": messages} | fields
        status, data = self.request("POST", "/v1/chat/completions", body)
        return status, json.loads(data)

    def stream(self, messages: list[dict[str, Any]], **fields: object) -> Iterator[dict[str, Any]]:
        """A streamed chat completion: its events, decoded, without the closing mark."""
        body = {"model": "tiny_vlm", "temperature": 0, "messages": messages, "stream": True} | fields
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
            for line in connection.getresponse():
                if line.startswith(b"data: {"):
                    yield json.loads(line[len(b"data: ") :])
        finally:
            connection.close()

    def kill(self) -> None:
        """End it and everything it has started without any warning."""
        assert self.process is not None, "only what was started here"
        _signal_group(self.process, signal.SIGKILL)
        self.process.wait(_STOP_S)

    def stop(self) -> None:
        """End it and everything it has started."""
        if self.process is None:
            return
        _signal_group(self.process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOP_S)
        _signal_group(self.process, signal.SIGKILL)
        self.process.wait(_STOP_S)


@contextmanager
def vllm_server(
    *arguments: str, log_path: Path, model: Path = MODEL, environment: Mapping[str, str] | None = None
) -> Iterator[VllmServer]:
    """Start a server and wait until it is ready.

    Raises:
        RuntimeError: It ended, or was not ready in time; with the end of its log.
    """
    server = start(*arguments, log_path=log_path, model=model, environment=environment)
    try:
        wait_ready(server)
        yield server
    finally:
        server.stop()


def start(
    *arguments: str,
    log_path: Path,
    model: Path = MODEL,
    environment: Mapping[str, str] | None = None,
    python: Path | None = None,
) -> VllmServer:
    """Start a server without waiting, so that several can start at once."""
    port = free_port()
    command = [str(python or vllm_python()), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", "tiny_vlm", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    command += ["--max-model-len", "4096", "--enforce-eager", *arguments]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | _ENVIRONMENT | dict(environment or {}),
            start_new_session=True,
        )
    return VllmServer(process, port, log_path)


def wait_ready(server: VllmServer, timeout_s: float = START_S) -> None:
    """Return when it answers. Raises `RuntimeError` with the end of its log when it does not."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if server.process is not None and server.process.poll() is not None:
            break
        if server.is_alive:
            return
        time.sleep(0.5)
    tail = "\n".join(server.log().splitlines()[-_LOG_TAIL_LINES:])
    status = server.process.poll() if server.process is not None else None
    raise RuntimeError(f"vLLM was not ready (exit status {status}):\n{tail}")


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
