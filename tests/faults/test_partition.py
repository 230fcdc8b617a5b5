"""An encoder and a decoder on another host, behind a wire that is slow, loses packets, and is cut during a transfer."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest

from benchmarks.namespaces import Namespace, why_not
from chiasm.faults.client import FINISHED, NO_ANSWER, Client
from chiasm.faults.questions import Question, about
from tests.architecture.repository import ROOT
from tests.conditions import until

REASON = why_not()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(590), pytest.mark.skipif(bool(REASON), reason=REASON)]

START_S = 300.0
HEAL_S = 240.0
DEADLINE_S = 20.0
"""Of requests while the wire is cut. The machine may have other work: an end is looked for within three times that."""

QUESTIONS = [about((7,), "What color is the shape?"), Question("Hello, who are you?"), about((8, 9), "What is it?")]


@asynccontextmanager
async def process(words):
    """A process that says one line of JSON when it is ready; gone at the end."""
    running = await asyncio.create_subprocess_exec(
        *words, cwd=ROOT, stdout=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True
    )
    try:
        yield json.loads(await asyncio.wait_for(running.stdout.readline(), START_S))
    finally:
        if running.returncode is None:
            os.killpg(running.pid, signal.SIGKILL)  # `ip` and what it started
        await running.wait()
        running._transport.close()


def options(host):
    """What all of the fleet are told; `host` is where their tensors are taken."""
    values = {
        "transfer.connector": "tcp",
        "transfer.host": host,
        "transfer.timeout_s": "5",
        "routing.worker_token": "secret",
        "engine.threads": "1",
        "observability.log_level": "error",
    }
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


def chiasm(*words):
    return [sys.executable, "-m", "chiasm", *words]


@dataclass
class Fleet:
    """A gateway with a prefill worker here, an encoder and a decoder there."""

    namespace: Namespace
    client: Client
    address: str

    async def states(self):
        """The states of the members."""
        async with aiohttp.ClientSession() as http, http.get(f"{self.address}/debug/state") as answer:
            return [one["state"] for one in (await answer.json())["fleet"]["members"]]

    async def until_healed(self):
        async with asyncio.timeout(HEAL_S):
            while await self.states() != ["ready"] * 3:  # noqa: ASYNC110 - the server announces it to nobody
                await asyncio.sleep(0.2)


@asynccontextmanager
async def fleet():
    async with AsyncExitStack() as stack:
        namespace = stack.enter_context(Namespace())
        members = []
        for number, role in enumerate(("encode", "decode")):
            address = f"http://{namespace.there}:{9100 + number}"
            words = chiasm("worker", "--role", role, "--name", role, "--address", address, "--json")
            await stack.enter_async_context(process(namespace.command([*words, *options(namespace.there)])))
            members.append(address)
        split = "--topology e-p-d --encoders 0 --prefills 1 --decodes 0 --port 0 --json".split()  # noqa: SIM905 - a line
        listed = ["--set", f"routing.members={json.dumps(members)}", "--set", "routing.local_encode=never"]
        ready = await stack.enter_async_context(process(chiasm("serve", *split, *listed, *options(namespace.here))))
        client = await stack.enter_async_context(Client(ready["address"]))
        yield Fleet(namespace, client, ready["address"])


async def tokens_of(client, questions):
    answers = await asyncio.gather(*(client.ask(one) for one in questions))
    assert [one.outcome for one in answers] == [FINISHED] * len(questions)
    return [one.tokens for one in answers]


def brief(number):
    """A question about a picture that nobody has asked before, which must end soon."""
    asked = about((1000 + number,))
    return Question(asked.text, asked.pictures, asked.identities, asked.max_tokens, DEADLINE_S)


async def test_delay_loss_and_a_partition_change_no_answer_and_no_request_hangs():
    alone = chiasm("serve", "--port", "0", "--json", "--set", "engine.threads=1")
    async with process(alone) as ready, Client(ready["address"]) as client:
        right = await tokens_of(client, [*QUESTIONS, *map(brief, range(6))])
    async with fleet() as running:
        wire = running.namespace.wire
        wire.delay_s, wire.loss = 0.020, 0.01
        assert await tokens_of(running.client, QUESTIONS) == right[: len(QUESTIONS)]
        wire.loss, before = 0.0, wire.num_bytes
        wire.delay_s = 0.2  # so that a transfer can be met on its way
        asked = [asyncio.create_task(running.client.ask(brief(number))) for number in range(3)]
        await until(lambda: wire.num_bytes > before + 20_000, START_S)
        wire.is_cut = True
        assert not all(one.done() for one in asked), "some are met on their way"
        answers = await asyncio.wait_for(asyncio.gather(*asked), 3 * DEADLINE_S)
        check(answers, right[len(QUESTIONS) :])
        later = await asyncio.wait_for(running.client.ask(brief(3)), 3 * DEADLINE_S)
        assert later.outcome not in (FINISHED, NO_ANSWER), "nobody could have encoded it"
        wire.delay_s, wire.is_cut = 0.0, False
        await running.until_healed()
        assert await tokens_of(running.client, [brief(number) for number in range(4, 6)]) == right[-2:]


def check(answers, right):
    """Each has ended, rightly or with a code."""
    for answer, tokens in zip(answers, right, strict=False):
        assert answer.outcome not in ("", NO_ANSWER)
        assert answer.outcome != FINISHED or answer.tokens == tokens
