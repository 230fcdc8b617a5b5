"""What a reranking peer is asked and answers: one JSON object a line. Only the standard library."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

MAX_TOKENS = 256
"""Longest pair, for everybody; what services that pad to a fixed length pad to."""


class Reranker(Protocol):
    """An engine under test."""

    def load(self, model: str, dtype: str, threads: int) -> dict[str, str]:
        """Load the model directory; returns versions of what matters."""
        ...

    def score(self, query: str, documents: list[str]) -> list[float]:
        """Scores of one call. May be called by several threads."""
        ...


class OneAtATime:
    """For engines that compute one call at a time: callers queue up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def score(self, query: str, documents: list[str]) -> list[float]:
        with self._lock:
            return self.compute(query, documents)

    def compute(self, query: str, documents: list[str]) -> list[float]:
        """Scores of one call."""
        raise NotImplementedError


def _calls(score: Callable[[str, list[str]], list[float]], ask: dict[str, Any]) -> dict[str, Any]:
    """All calls by so many callers, each asking again as soon as it has its answer."""

    def timed(call: dict[str, Any]) -> tuple[float, list[float]]:
        started = time.perf_counter()
        scores = score(call["query"], call["documents"])
        return time.perf_counter() - started, scores

    with ThreadPoolExecutor(ask["callers"]) as pool:
        done = list(pool.map(timed, ask["calls"]))
    return {"latencies_s": [latency for latency, _ in done], "scores": [scores for _, scores in done]}


def serve(peer: Reranker) -> None:
    """Answer until stdin closes. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        ask = json.loads(line)
        cpu, started = time.process_time(), time.perf_counter()
        try:
            if ask["op"] == "load":
                answer: dict[str, Any] = {"versions": peer.load(ask["model"], ask["dtype"], ask["threads"])}
            else:
                answer = _calls(peer.score, ask)
        except Exception as error:  # noqa: BLE001 - the driver reports it and goes on with the other peers
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        wall_s = time.perf_counter() - started
        answers.write(json.dumps(answer | {"wall_s": wall_s, "cpu_s": time.process_time() - cpu}) + "\n")
