"""A server with tenants, and streams of theirs timed to the first token."""

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.modules import process
from chiasm.tenancy.edit import new_key

PATH = "/v1/chat/completions"
TIMEOUT = aiohttp.ClientTimeout(total=120)


class Server:
    """An address, a key per tenant, and whose process it is; 0: not known."""

    def __init__(self, address: str, keys: dict[str, str], pid: int = 0) -> None:
        self.address = address
        self.keys = keys
        self.pid = pid

    def headers(self, tenant: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys.get(tenant, '')}"}


@contextmanager
def served(
    tenants: Sequence[str], limits: str, settings: Sequence[str] = (), threads: int = 1, log_level: str = "warning"
) -> Iterator[Server]:
    """`chiasm serve` with the packaged model, behind a keys file that begins with `limits`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys.toml"
        path.write_text(limits)
        keys = {tenant: new_key(path, tenant, ["infer", "metrics"]) for tenant in tenants}
        options = [f"--set={setting}" for setting in (f"gateway.keys_file={path}", *settings)]
        command = ("chiasm", "serve", "--json", "--port", "0", "--log-level", log_level, *options)
        with process(*command, threads=threads) as running:
            assert running.stdout is not None
            yield Server(json.loads(_whole(running))["address"], keys, running.pid)


def _whole(running: subprocess.Popen) -> str:
    """The JSON that says that the server is ready, in however many lines."""
    text = ""
    while line := running.stdout.readline():
        text += line
        if line.rstrip().endswith("}"):
            return text
    sys.exit("the server did not start")


async def first_token_s(session: aiohttp.ClientSession, server: Server, tenant: str, body: dict[str, Any]) -> Any:
    """Seconds from sending to the first token of a stream; None when it was refused with 429."""
    started_s = time.perf_counter()
    first_s = None
    async with session.post(server.address + PATH, json=body, headers=server.headers(tenant)) as answer:
        if answer.status == 429:
            return None
        answer.raise_for_status()
        async for line in answer.content:
            if first_s is None and line.startswith(b"data:"):
                first_s = time.perf_counter() - started_s
    return first_s


def arrivals_s(per_s: float, seconds: float, seed: int) -> list[float]:
    """Times of a Poisson process."""
    pace, when_s, times_s = random.Random(seed), 0.0, []
    while (when_s := when_s + pace.expovariate(per_s)) < seconds:
        times_s.append(when_s)
    return times_s


def text_body(seed: int, num_words: int, max_tokens: int) -> dict[str, Any]:
    """A prompt that nobody else has."""
    words = random.Random(seed)
    text = " ".join(words.choice(("red", "circle", "blue", "square", "big", "small")) for _ in range(num_words))
    content = f"{seed} {text}"
    return {"messages": [{"role": "user", "content": content}], "max_tokens": max_tokens, "stream": True}
