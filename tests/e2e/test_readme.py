"""The README's own commands and examples, run as a reader would run them, against one real server."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from threading import Timer

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
START_TIMEOUT_S = 150
RUN_TIMEOUT_S = 150
CHIASM = Path(sys.executable).parent / "chiasm"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # each example loads torch once


def _blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text("utf-8")
    parts = text.split("```")
    return [part.removeprefix(language + "\n") for part in parts[1::2] if part.startswith(language + "\n")]


def _run(*command: str | Path) -> str:
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=RUN_TIMEOUT_S, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def server():
    """`chiasm serve` in a process of its own, as `make serve` starts it."""
    environment = os.environ | {"CHIASM_GATEWAY__PORT": "0"}
    command = [CHIASM, "serve", "--json"]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as process:
        try:
            yield _address(process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0, "a drained server ends well"
        finally:
            process.kill()


def _address(process: subprocess.Popen) -> str:
    deadline = Timer(START_TIMEOUT_S, process.kill)
    deadline.start()
    printed = ""
    try:
        for line in process.stdout:
            printed += line
            if line.rstrip().endswith("}"):
                return json.loads(printed)["address"]
    finally:
        deadline.cancel()
    raise AssertionError(f"The server ended before it was ready: {printed}")


def test_the_openai_example_answers(server):
    (example,) = [block for block in _blocks("python") if "openai" in block]
    assert _run(sys.executable, "-c", example.replace("http://127.0.0.1:8000", server)) == "red"


def test_the_offline_example_answers():
    (example,) = [block for block in _blocks("python") if "from chiasm import LLM" in block]
    assert _run(sys.executable, "-c", example) == "red"


def test_the_ask_command_answers_and_shows_the_stages(server):
    (line,) = [line for block in _blocks("console") for line in block.splitlines() if "chiasm ask" in line]
    answer = _run(CHIASM, *shlex.split(line.replace("http://127.0.0.1:8000", server))[1:])
    assert answer.splitlines()[0] == "red"
    assert "time to first token" in answer


def test_the_ask_command_needs_no_server():
    assert _run(CHIASM, "ask", "examples/blue_square.png", "What color is the shape?") == "blue"
