"""What becomes of a vLLM server when an embedding goes wrong: vLLM's example connector beside Chiasm's, same requests.

For every row: a neighbour's stream runs on the consumer, the row's request is sent to it, and it is written down what
the request got, whether the answer was the right one, whether the stream came to its end, and whether the engine lived.
A consumer that died is started again, so a table takes some minutes.
"""

import argparse
import json
import mmap
import os
import shlex
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import machine
from chiasm.connectors.shm import arena
from tests.vllm.fleets import transfer_flags
from tests.vllm.pictures import Params, ask, encode, grid, identity, new_picture, question, raw, reference
from tests.vllm.servers import VllmServer, start, wait_ready

RESULTS = Path(__file__).parent / "results"
CONNECTORS = ("example", "chiasm")


class Case(NamedTuple):
    """A picture that was encoded, and how to make its embedding go wrong."""

    picture: bytes
    params: Params
    grid: list[int]
    lose: Callable[[], None]
    spoil: Callable[[], None]


Row = Callable[[Case], tuple[Params | None, list[int]]]


def _lost(case: Case) -> tuple[Params | None, list[int]]:
    case.lose()
    return case.params, case.grid


def _spoilt(case: Case) -> tuple[Params | None, list[int]]:
    case.spoil()
    return case.params, case.grid


def _unsaid(case: Case) -> tuple[Params | None, list[int]]:
    case.lose()
    return None, case.grid


def _with_grid(*wrong: int) -> Row:
    return lambda case: (case.params, list(wrong))


ROWS: dict[str, Row] = {  # those that end an engine last: each costs a start
    "nothing wrong": lambda case: (case.params, case.grid),
    "grid smaller than encoded": _with_grid(1, 8, 8),
    "grid of the same size, other shape": _with_grid(1, 2, 98),
    "a byte of the embedding changed": _spoilt,
    "grid [0, 0, 0]": _with_grid(0, 0, 0),
    "grid [1, -14, -14]": _with_grid(1, -14, -14),
    "embedding gone": _lost,
    "embedding gone, nothing said about it": _unsaid,
    "grid larger than encoded": _with_grid(1, 28, 28),
}


def breaking(key: str, params: Params, store: Path | None) -> tuple[Callable[[], None], Callable[[], None]]:
    """How to lose an embedding, and how to change a byte of it: one in the example connector's folder, or Chiasm's."""
    if store is not None:
        path = store / key / "encoder_cache.safetensors"
        return partial(path.unlink, missing_ok=True), partial(_flip, path, -99)
    address = params[key]["chiasm"]["address"]
    return partial(_forget, address), partial(_flip_slot, address)


class Pair:
    """An encoder and a consumer with one connector."""

    def __init__(self, connector: str, folder: Path, arguments: list[str], python: Path | None) -> None:
        self.connector = connector
        self.arguments = arguments
        self.python = python
        self.folder = folder
        self.store = folder / "store"
        self.store.mkdir()
        self.encoder = self._start("ec_producer")
        self.consumer = self._start("ec_consumer")
        wait_ready(self.encoder)
        wait_ready(self.consumer)

    def revive(self) -> None:
        """Start the consumer again when it is dead."""
        if not self.consumer.is_alive:
            self.consumer.stop()
            self.consumer = self._start("ec_consumer")
            wait_ready(self.consumer)

    def case(self) -> Case:
        """Encode a picture that nobody has seen."""
        picture = new_picture()
        params = encode(self.encoder, picture)
        return Case(picture, params, grid(params, picture), *breaking(identity(picture), params, self.store_in_use))

    @property
    def store_in_use(self) -> Path | None:
        """Folder of the example connector; None: Chiasm's has none."""
        return self.store if self.connector == "example" else None

    def close(self) -> None:
        """End both."""
        for server in (self.encoder, self.consumer):
            server.stop()

    def _start(self, role: str) -> VllmServer:
        transfer = transfer_flags(role)
        if self.connector == "example":
            extra = {"shared_storage_path": str(self.store)}
            config = {"ec_connector": "ECExampleConnector", "ec_role": role, "ec_connector_extra_config": extra}
            transfer = ["--ec-transfer-config", json.dumps(config)]
        limit = '{"image": 4, "video": 0}'
        log = self.folder / f"{role}-{time.monotonic_ns()}.log"
        flags = ["--limit-mm-per-prompt", limit, *transfer, *self.arguments]
        return start(*flags, log_path=log, python=self.python)


def run_row(pair: Pair, row: Row, tolerance: float) -> dict[str, Any]:
    """Send one request beside a neighbour's stream; returns what came of both."""
    pair.revive()
    consumer, case = pair.consumer, pair.case()
    expected = ask(consumer, raw(case.picture), max_tokens=4)
    params, sent_grid = row(case)
    events: list[dict[str, Any]] = []
    answers = consumer.stream(question(text="Tell me a story."), max_tokens=200, min_tokens=200, ignore_eos=True)
    events.append(next(answers))
    neighbour = threading.Thread(target=_gather, args=(answers, events))
    neighbour.start()
    started = time.monotonic()
    try:
        answer = ask(consumer, reference(case.picture, sent_grid), params=params, max_tokens=4)
    except OSError as error:
        answer = (0, type(error).__name__)
    waited_s = time.monotonic() - started
    neighbour.join(120)
    reasons = [choice.get("finish_reason") for event in events for choice in event.get("choices", [])]
    return {
        "status": answer[0],
        "message": "" if answer[0] == 200 else str(answer[1])[:160],
        "is_right_answer": _is_same(answer, expected, tolerance),
        "is_wrong_answer": answer[0] == 200 and not _is_same(answer, expected, tolerance),
        "waited_s": round(waited_s, 2),
        "neighbour_finished": "length" in reasons,
        "engine_lives": consumer.is_alive,
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks vllm_failures", description=__doc__)
    parser.add_argument("--connectors", nargs="+", choices=CONNECTORS, default=list(CONNECTORS))
    parser.add_argument("--rows", type=int, default=len(ROWS), help="only so many of the first rows")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="of logprobs that count as the same")
    parser.add_argument("--python", type=Path, help="interpreter that has vLLM; default: the tests' own")
    parser.add_argument("--server-arguments", default="", help="further flags of both servers, as one word")
    parser.add_argument("--out", type=Path, default=RESULTS / "vllm" / "failures.json")
    options = parser.parse_args(arguments)
    about = machine.describe()
    table: dict[str, dict[str, Any]] = {}
    for connector in options.connectors:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            pair = Pair(connector, Path(folder), shlex.split(options.server_arguments), options.python)
            try:
                for name, row in list(ROWS.items())[: options.rows]:
                    table.setdefault(name, {})[connector] = found = run_row(pair, row, options.tolerance)
                    print(f"{connector:8} {name:40} {found}", flush=True)
            finally:
                pair.close()
    options.out.write_text(json.dumps({"machine": about, "rows": table}, indent=1) + "\n")


def _is_same(answer: tuple[int, Any], expected: tuple[int, Any], tolerance: float) -> bool:
    if answer[0] != 200 or [token for token, _ in answer[1]] != [token for token, _ in expected[1]]:
        return False
    return all(abs(a - b) <= tolerance for (_, a), (_, b) in zip(answer[1], expected[1], strict=True))


def _gather(answers: Any, events: list[dict[str, Any]]) -> None:
    try:
        events.extend(answers)
    except (OSError, ValueError):
        events.append({"error": "cut off"})


def _flip(path: Path, offset: int) -> None:
    """Change a bit of a byte, counted from the end where `offset` is below 0."""
    with path.open("r+b") as file:
        offset = file.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x40]))


def _flip_slot(address: str) -> None:
    place = arena.parse_address(address)
    path = arena.FOLDER / place.name
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        _, offset, num_bytes, _ = arena.read_slot(memory, place.slot)
    _flip(path, offset + num_bytes - 99)


def _forget(address: str) -> None:
    place = arena.parse_address(address)
    with (arena.FOLDER / place.name).open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        arena.clear_slot(memory, place.slot)
