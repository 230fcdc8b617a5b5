"""What clients get when an embedding goes wrong behind a front: Chiasm over vLLM beside vLLM's example EPD proxy.

The rows of `benchmarks.vllm_failures`, and encoders that say something wrong. Between front and servers stand relays
that make it go wrong, the first time or every time. Chiasm's front is over its own connector, the proxy over vLLM's
example. A neighbour's stream runs through the same front. A consumer that died is started again: some minutes in all.
"""

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import machine
from benchmarks.vllm_failures import CONNECTORS, RESULTS, ROWS, Case, Pair, Row, breaking
from chiasm.settings.process import inherited_environment
from tests.vllm.pictures import ask, new_picture, question, raw, tokens
from tests.vllm.relays import Body, Change, CutOff, Relay, relay, unchanged
from tests.vllm.servers import MODEL, VllmServer, free_port

FRONTS = ("proxy", "chiasm")
MODES = ("once", "always")
_READY_S = 300.0
_TOLERANCE = 1e-4


class Fault(NamedTuple):
    """What becomes of the call to the consumer, and of the encoder's call and answer."""

    consumer: Change = unchanged
    encoder: Change = unchanged
    encoded: Change = unchanged


def at_consumer(row: Row, store: Path | None) -> Change:
    """Change a call to the consumer as a row has it. Calls without references stay as they are."""

    def change(body: Body) -> Body:
        found = _references(body)
        if not found:
            return body
        told, key = body.pop("ec_transfer_params", None), found[0]["uuid"]
        announced = found[0]["image_embeds"]["image_grid_thw"]
        params, grid = row(Case(b"", told or {}, announced, *breaking(key, told or {}, store)))
        found[0]["image_embeds"]["image_grid_thw"] = grid
        return body if params is None or told is None else body | {"ec_transfer_params": params}

    return change


def _references(body: Body) -> list[Body]:
    contents = [message["content"] for message in body.get("messages", ()) if isinstance(message["content"], list)]
    return [part for content in contents for part in content if part["type"] == "image_embeds"]


def _announces(*grid: int) -> Change:
    def change(body: Body) -> Body:
        for entry in (body.get("ec_transfer_params") or {}).values():
            entry["metadata"]["image_grid_thw"] = list(grid)
        return body

    return change


def _cut_off(_: Body) -> Body:
    raise CutOff


def faults(store: Path | None) -> dict[str, Fault]:
    """By name; `store` is the example connector's folder, None with Chiasm's."""
    consumer = {name: Fault(consumer=at_consumer(row, store)) for name, row in ROWS.items()}
    encoder = {
        "encoder cuts the call off": Fault(encoder=_cut_off),
        "encoder names no embedding": Fault(encoded=lambda body: body | {"ec_transfer_params": None}),
        "encoder announces a smaller grid": Fault(encoded=_announces(1, 8, 8)),
        "encoder announces a larger grid": Fault(encoded=_announces(1, 28, 28)),
    }
    return encoder | consumer


def first_time(change: Change) -> Change:
    """The same for the first call that it changes, and none after."""
    is_over = False

    def once(body: Body) -> Body:
        nonlocal is_over
        if is_over or change is unchanged:
            return body
        before = json.dumps(body)
        try:
            changed = change(body)
        except CutOff:
            is_over = True
            raise
        is_over = json.dumps(changed) != before or bool(_references(body))
        return changed

    return once


class Front(NamedTuple):
    """A front and its servers behind relays."""

    server: VllmServer
    pair: Pair
    encoder: Relay
    consumer: Relay

    def set(self, fault: Fault, mode: str) -> None:
        """Have it happen to all calls from now on."""
        wrap: Callable[[Change], Change] = first_time if mode == "once" else lambda change: change
        self.consumer.asked, self.encoder.asked = wrap(fault.consumer), wrap(fault.encoder)
        self.encoder.answered = wrap(fault.encoded)

    def clear(self) -> None:
        """Have nothing happen any more, to servers that live."""
        self.set(Fault(), "always")
        self.pair.revive()
        self.consumer.to = self.pair.consumer.url
        deadline_s = time.monotonic() + _READY_S
        while _chat(self.server, question(text="Hello"), max_tokens=1)[0] != 200:
            if time.monotonic() > deadline_s:
                raise SystemExit("The front does not answer any more")
            time.sleep(0.3)


def _chat(server: VllmServer, messages: list[dict[str, Any]], **fields: object) -> tuple[int, Any]:
    """Status and body; 0 and the error's name where there was no answer."""
    try:
        return server.chat(messages, **fields)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return 0, type(error).__name__


def run_row(front: Front, fault: Fault, mode: str) -> dict[str, Any]:
    """One request through the front beside a neighbour's stream; what came of both."""
    front.clear()
    picture = new_picture()
    expected = ask(front.pair.consumer, raw(picture), max_tokens=4)[1]
    events: list[dict[str, Any]] = []
    answers = front.server.stream(question(text="Tell me a story."), max_tokens=200, min_tokens=200)
    events.append(next(answers))
    neighbour = threading.Thread(target=_gather, args=(answers, events))
    neighbour.start()
    front.set(fault, mode)
    started_s = time.monotonic()
    status, body = _chat(front.server, question(raw(picture)), max_tokens=4, logprobs=True)
    waited_s = time.monotonic() - started_s
    neighbour.join(120)
    is_right = status == 200 and _is_same(tokens(body), expected)
    reasons = [choice.get("finish_reason") for event in events for choice in event.get("choices", [])]
    return {
        "status": status,
        "message": "" if status == 200 else json.dumps(body)[:160],
        "is_right_answer": is_right,
        "is_wrong_answer": status == 200 and not is_right,
        "waited_s": round(waited_s, 2),
        "neighbour_finished": "length" in reasons,
        "engine_lives": front.pair.consumer.is_alive,
    }


def _is_same(found: list[tuple[str, float]], expected: list[tuple[str, float]]) -> bool:
    if [token for token, _ in found] != [token for token, _ in expected]:
        return False
    return all(abs(a - b) <= _TOLERANCE for (_, a), (_, b) in zip(found, expected, strict=True))


def _gather(answers: Iterator[dict[str, Any]], events: list[dict[str, Any]]) -> None:
    with suppress(OSError, ValueError, http.client.HTTPException):
        events.extend(answers)


@contextmanager
def running(kind: str, options: argparse.Namespace) -> Iterator[Front]:
    """A front over servers of its own."""
    with ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        connector = CONNECTORS[FRONTS.index(kind)]
        pair = Pair(connector, folder, [], options.python)
        closing.callback(pair.close)
        encoder = closing.enter_context(relay(pair.encoder.url))
        consumer = closing.enter_context(relay(pair.consumer.url))
        port = free_port()
        command = _command(kind, options, port, encoder, consumer, folder)
        with (folder / "front.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=_environment())
        closing.callback(process.wait, 30)
        closing.callback(process.terminate)
        yield Front(VllmServer(None, port, folder / "front.log"), pair, encoder, consumer)


def _command(
    kind: str, options: argparse.Namespace, port: int, encoder: Relay, consumer: Relay, folder: Path
) -> list[str]:
    if kind == "proxy":
        python = options.python or sys.executable
        places = [f"--encode-servers-urls={encoder.url}", "--prefill-servers-urls=none"]
        places.append(f"--decode-servers-urls={consumer.url}")
        return [str(python), str(options.proxy), "--host", "127.0.0.1", "--port", str(port), *places]
    listed = {"e": (encoder.url, '["encode"]'), "pd": (consumer.url, '["prefill", "decode"]')}
    tables = [f'[[workers]]\nname = "{name}"\nurl = "{url}"\nroles = {its}\n' for name, (url, its) in listed.items()]
    (folder / "workers.toml").write_text("\n".join(tables))
    words = [sys.executable, "-m", "chiasm", "serve", "--engine", "vllm", "--topology", "e-pd", "--port", str(port)]
    words += ["--model", str(MODEL), "--workers", str(folder / "workers.toml")]
    for setting in ("engine.dtype=float32", "engine.max_model_tokens=4096", "routing.local_encode=never"):
        words += ["--set", setting]
    return words


def _environment() -> Mapping[str, str]:
    return inherited_environment() | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks vllm_fronts", description=__doc__)
    parser.add_argument("--fronts", nargs="+", choices=FRONTS, default=["chiasm"])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--rows", type=int, help="only so many of the first rows")
    parser.add_argument("--python", type=Path, help="interpreter that has vLLM; default: the tests' own")
    parser.add_argument("--proxy", type=Path, help="vLLM's example disagg_epd_proxy.py, run by the same interpreter")
    parser.add_argument("--out", type=Path, default=RESULTS / "vllm" / "fronts.json")
    options = parser.parse_args(arguments)
    if "proxy" in options.fronts and options.proxy is None:
        parser.error("--fronts proxy needs --proxy")
    about = machine.describe()
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for kind in options.fronts:
        with running(kind, options) as front:
            rows = list(faults(front.pair.store_in_use).items())[: options.rows]
            for name, fault in rows:
                for mode in options.modes:
                    found = run_row(front, fault, mode)
                    table.setdefault(name, {}).setdefault(kind, {})[mode] = found
                    print(f"{kind:7} {mode:7} {name:40} {found}", flush=True)
    options.out.write_text(json.dumps({"machine": about, "rows": table}, indent=1) + "\n")
