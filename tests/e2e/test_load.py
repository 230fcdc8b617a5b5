"""Many requests at once, some broken and some abandoned: each ends once, and the engine comes back to rest."""

import asyncio
import json
import time
import urllib.request
from collections import Counter

import openai
import pytest

from tests.e2e.served import ask, picture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

COLOR = "What color is the shape?"
COLORS = ("red", "blue", "green")


def metric(served, name):
    """Sums of a metric over its labels, by outcome where it has one."""
    with urllib.request.urlopen(f"{served.address}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    totals = Counter()
    for line in lines:
        if line.startswith(name + "{") or line.startswith(name + " "):
            labels, value = line.rsplit(" ", 1)
            outcome = labels.split('outcome="')[1].split('"')[0] if "outcome=" in labels else "all"
            totals[outcome] += int(float(value))
    return totals


def until_counted(served, name, count):
    """A metric once it has come to a number: the engine is idle before the gateway has counted an ending."""
    deadline_s = time.monotonic() + 30
    while (found := metric(served, name)).total() < count:
        assert time.monotonic() < deadline_s, found
        time.sleep(0.02)
    return found


def test_leaving_a_stream_frees_the_engine(client, served):
    served.until_idle()
    stream = client.chat.completions.create(
        model="tiny_vlm", messages=ask(picture("red"), "Describe the image."), stream=True, max_tokens=2000,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    next(iter(stream))
    assert served.stats().num_open_requests == 1
    stream.close()
    idle = served.until_idle()
    assert idle.num_free_slots == 16
    made = client.chat.completions.create(model="tiny_vlm", messages=ask(picture("red"), COLOR), temperature=0)
    assert "red" in made.choices[0].message.content


def test_a_deadline_frees_the_engine(client, served):
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(
            model="tiny_vlm", messages=ask("Tell me a story."), max_tokens=3000,
            extra_body={"ignore_eos": True, "chiasm": {"timeout_s": 0.3}},
        )  # fmt: skip
    assert caught.value.status_code == 504
    served.until_idle()


async def one(client, index):
    """One of ten kinds of request; returns how it ended."""
    color = COLORS[index % 3]
    shown = picture(color, shift=index % 7)
    kind = index % 10
    options = {"model": "tiny_vlm", "temperature": 0, "max_tokens": 8}
    try:
        if kind == 8:  # malformed
            await client.chat.completions.create(**options, messages=ask("data:image/png;base64,iVBORw0KGgo=", "x"))
        elif kind == 9:  # abandoned in the middle
            stream = await client.chat.completions.create(
                **{**options, "max_tokens": 500}, messages=ask(shown, "Describe the image."), stream=True,
                extra_body={"ignore_eos": True},
            )  # fmt: skip
            async for _ in stream:
                break
            await stream.close()
            return "left"
        elif kind in (5, 6, 7):  # text
            made = await client.chat.completions.create(**options, messages=ask("Count from 3 to 9."))
            return "text", made.choices[0].message.content
        elif kind in (3, 4):  # streamed
            stream = await client.chat.completions.create(**options, messages=ask(shown, COLOR), stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            return "picture", color in text
        else:
            made = await client.chat.completions.create(**options, messages=ask(shown, COLOR))
            return "picture", color in made.choices[0].message.content
    except openai.BadRequestError as error:
        return error.code


async def all_of(served, count):
    async with openai.AsyncOpenAI(
        base_url=f"{served.address}/v1", api_key="none", max_retries=0, timeout=200
    ) as client:
        return await asyncio.gather(*(one(client, index) for index in range(count)))


def test_two_hundred_at_once(served):
    received = metric(served, "chiasm_requests_received_total")["all"]
    before = until_counted(served, "chiasm_requests_total", received)
    seen = Counter(map(json.dumps, asyncio.run(all_of(served, 200))))
    idle = served.until_idle()
    ended = until_counted(served, "chiasm_requests_total", received + 200) - before
    assert ended == {"finished": 160, "media_undecodable": 20, "cancelled": 20}
    assert metric(served, "chiasm_requests_received_total")["all"] - received == 200
    assert metric(served, "chiasm_requests_open")["all"] == 0
    assert seen['"media_undecodable"'] == 20
    assert seen['"left"'] == 20
    assert seen['["picture", true]'] == 100, "every picture got its own answer"
    texts = {key: number for key, number in seen.items() if key.startswith('["text"')}
    assert list(texts.values()) == [60], f"the same question has the same answer beside any neighbours: {texts}"
    assert idle.is_healthy
