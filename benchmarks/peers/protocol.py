"""What a peer process is asked and answers: one JSON object a line. Only the standard library; runs in any environment.

Operations: load, tokens (a batch of equal requests), mix (requests with arrival times), picture (time to first token).
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Request:
    """A prompt and how many tokens to make, end-of-sequence ignored; `at_s` after the start."""

    token_ids: list[int]
    num_tokens: int
    at_s: float = 0.0


class Peer(Protocol):
    """An engine under test. Every method returns when the work is done."""

    def load(self, model: str, dtype: str, threads: int) -> dict[str, str]:
        """Load the model directory; returns versions of what matters."""
        ...

    def tokens(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        """Greedy continuation of all prompts at once, `num_tokens` each."""
        ...

    def mix(self, requests: list[Request]) -> list[float]:
        """Serve requests as they arrive; returns when each was done, in seconds after the start."""
        ...

    def picture(self, encoded: bytes, question: str) -> None:
        """One chat request with a picture, one token."""
        ...


def wait_until(started: float, at_s: float) -> None:
    """Sleep until `at_s` after `started` (of `time.perf_counter`)."""
    remaining_s = started + at_s - time.perf_counter()
    if remaining_s > 0:
        time.sleep(remaining_s)


def _answer(peer: Peer, ask: dict[str, Any]) -> dict[str, Any]:
    operation = ask["op"]
    if operation == "load":
        return {"versions": peer.load(ask["model"], ask["dtype"], ask["threads"])}
    if operation == "tokens":
        return {"outputs": peer.tokens(ask["prompts"], ask["num_tokens"])}
    if operation == "mix":
        return {"done_s": peer.mix([Request(**request) for request in ask["requests"]])}
    with open(ask["path"], "rb") as file:  # noqa: PTH123 - inside the measured time
        return {"done": peer.picture(file.read(), ask["question"])}


def serve(peer: Peer) -> None:
    """Answer until stdin closes. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        cpu, started = time.process_time(), time.perf_counter()
        try:
            answer = _answer(peer, json.loads(line))
        except Exception as error:  # noqa: BLE001 - the driver reports it and goes on with the other peers
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        wall_s = time.perf_counter() - started
        answers.write(json.dumps(answer | {"wall_s": wall_s, "cpu_s": time.process_time() - cpu}) + "\n")
