"""The official client, unmodified, against a real server."""

import json

import openai
import pytest
import pytest_asyncio

from chiasm.tenancy.edit import new_key
from tests.fakes import by_prompt
from tests.integration.gateway_server import running

pytestmark = pytest.mark.asyncio(loop_scope="module")

PNG = "data:image/png;base64,iVBORw0KGgo="


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server():
    async with running(by_prompt(), api_keys=("key",)) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(server):
    async with openai.AsyncOpenAI(base_url=f"{server.address}/v1", api_key="key", max_retries=0) as made:
        yield made


def say(text, *urls):
    images = [{"type": "image_url", "image_url": {"url": url, "detail": "high"}} for url in urls]
    return [{"role": "user", "content": [*images, {"type": "text", "text": text}]}]


async def test_models(client):
    assert [model.id async for model in client.models.list()] == ["fake"]
    assert (await client.models.retrieve("fake")).owned_by == "chiasm"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("gpt-4")


async def test_a_conversation_that_echoes_the_answer(client):
    messages = [{"role": "developer", "content": "be brief"}, *say("hello there", PNG)]
    first = await client.chat.completions.create(model="fake", messages=messages)
    assert first.choices[0].message.content == "hello there"
    assert first.usage.total_tokens == first.usage.prompt_tokens + first.usage.completion_tokens
    assert first._request_id == first.id
    second = await client.chat.completions.create(
        model="fake", messages=[*messages, first.choices[0].message, *say("and again")]
    )
    assert second.choices[0].message.content == "and again"


async def test_every_sampling_option_the_client_knows(client, server):
    await client.chat.completions.create(
        model="fake", messages=say("a b c"), temperature=0.5, top_p=0.9, n=2, max_completion_tokens=2, seed=3,
        stop=["x"], presence_penalty=0.1, frequency_penalty=0.2, logit_bias={"5": -1}, logprobs=True, top_logprobs=2,
        user="me", metadata={"k": "v"}, store=False, service_tier="auto", safety_identifier="s",
        response_format={"type": "json_object"}, extra_body={"top_k": 4, "min_p": 0.1, "repetition_penalty": 1.1,
        "ignore_eos": True, "min_tokens": 1, "stop_token_ids": [7], "skip_special_tokens": False},
    )  # fmt: skip
    sampling = server.worker.requests[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.n, sampling.max_tokens, sampling.seed) == (0.5, 0.9, 2, 2, 3)
    assert (sampling.stop, sampling.logit_bias, sampling.num_top_logprobs) == (("x",), {5: -1.0}, 2)
    assert (sampling.top_k, sampling.min_p, sampling.ignore_eos, sampling.stop_token_ids) == (4, 0.1, True, (7,))
    assert json.loads(sampling.json_schema) == {"type": "object"}


async def test_streaming_is_the_same_text(client):
    whole = await client.chat.completions.create(model="fake", messages=say("a b c d"))
    stream = await client.chat.completions.create(
        model="fake", messages=say("slow b c d"), stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "slow b c d"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 4
    assert len(chunks) >= 7, "a client that keeps up gets one chunk a token"


async def test_streaming_several_choices(client):
    stream = await client.chat.completions.create(model="fake", messages=say("a b"), n=3, stream=True)
    texts, ends = ["", "", ""], set()
    async for chunk in stream:
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            ends.add(choice.index)
    assert texts == ["a b"] * 3
    assert ends == {0, 1, 2}


async def test_logprobs(client):
    made = await client.chat.completions.create(model="fake", messages=say("a b"), logprobs=True, top_logprobs=2)
    content = made.choices[0].logprobs.content
    assert [entry.token for entry in content] == ["a", " b"]
    assert [top.token for top in content[0].top_logprobs] == ["t0", "t1"]
    assert content[0].bytes == [97]


async def test_completions(client):
    made = await client.completions.create(model="fake", prompt=["a b", "c"], n=2, logprobs=1)
    assert [choice.text for choice in made.choices] == ["a b", "a b", "c", "c"]
    assert made.choices[2].logprobs.tokens == ["c"]
    tokens = await client.completions.create(model="fake", prompt=[1, 2, 3])
    assert tokens.choices[0].text == "1 2 3"
    stream = await client.completions.create(model="fake", prompt="a b", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "a b"


async def test_the_receipt_comes_when_asked_for(client, server):
    raw = await client.chat.completions.with_raw_response.create(
        model="fake", messages=say("a", PNG), extra_body={"chiasm": {"receipt": True}}
    )
    receipt = raw.parse().model_extra["chiasm"]["receipt"]
    assert receipt["request_id"] == raw.headers["x-chiasm-receipt-id"]
    assert server.gateway.receipts.get(receipt["request_id"]).outcome == "finished"
    assert receipt["num_items"] == 1


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"tools": [TOOL]}, "unsupported_feature", "/tools"),
        ({"tools": [TOOL], "tool_choice": "required"}, "unsupported_feature", None),
        ({"modalities": ["text", "audio"], "audio": {"voice": "x", "format": "wav"}}, "unsupported_feature", None),
        ({"temperature": 200}, "invalid_request", "/temperature"),
        ({"extra_body": {"beam": 3}}, "invalid_request", "/beam"),
        ({"extra_body": {"ec_transfer_params": {"h": {}}}}, "unsupported_feature", "/ec_transfer_params"),
        (
            {"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]},
            "unsupported_feature",
            "/messages/0/role",
        ),
        ({"messages": say("x", "bad:1")}, "media_undecodable", "/messages/0/content/0/image_url/url"),
    ],
)
async def test_refusals_are_bad_requests(client, fields, code, param):
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(**{"model": "fake", "messages": say("x"), **fields})
    assert caught.value.code == code
    assert caught.value.type == "invalid_request_error"
    if param:
        assert caught.value.param == param


async def test_audio_is_refused_with_its_index(client):
    audio = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    with pytest.raises(openai.BadRequestError, match="Media item 1") as caught:
        await client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": [*say("x", PNG)[0]["content"], audio]}]
        )
    assert caught.value.code == "media_unsupported"


async def test_other_errors(client, server):
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="gpt-4", messages=say("x"))
    with pytest.raises(openai.InternalServerError, match="told to fail"):
        await client.chat.completions.create(model="fake", messages=say("fail 0"))
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(
            model="fake", messages=say("hang 0"), extra_body={"chiasm": {"timeout_s": 0.1}}
        )
    assert caught.value.status_code == 504
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").models.list()


async def test_a_failure_inside_a_stream_is_raised_by_the_client(client):
    stream = await client.chat.completions.create(model="fake", messages=say("fail 2 x"), stream=True)
    texts = []

    async def read():
        async for chunk in stream:
            texts.append(chunk.choices[0].delta.content or "")  # noqa: PERF401 - those before the failure count

    with pytest.raises(openai.APIError, match="told to fail") as caught:
        await read()
    assert caught.value.code == "internal_error"
    assert "".join(texts) == "fail 2"


async def test_a_failure_before_the_first_token_of_a_stream_has_a_status(client):
    with pytest.raises(openai.InternalServerError, match="told to fail"):
        await client.chat.completions.create(model="fake", messages=say("fail 0"), stream=True)


async def test_closing_a_stream_cancels_it(client, server):
    before = server.outcomes().get("cancelled", 0)
    stream = await client.chat.completions.create(model="fake", messages=say("hang 1 x"), stream=True)
    async for _ in stream:
        break
    await stream.close()
    await server.until_idle()
    assert server.outcomes()["cancelled"] == before + 1


async def test_beyond_a_limit_the_client_learns_when_to_come_back_whatever_it_sent(tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text("[tenants.acme]\nmax_requests_per_minute = 1\n")
    key = new_key(keys, "acme", ["infer"])
    async with (
        running(by_prompt(), keys_file=str(keys)) as limited,
        openai.AsyncOpenAI(base_url=f"{limited.address}/v1", api_key=key, max_retries=0) as made,
    ):
        await made.chat.completions.create(model="fake", messages=say("hello"))
        for text in ("again", "large " * 1_000_000):
            with pytest.raises(openai.RateLimitError) as caught:
                await made.chat.completions.create(model="fake", messages=say(text))
            assert (caught.value.code, caught.value.request_id[:9]) == ("rate_limited", "chatcmpl-")
            assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
        assert limited.outcomes() == {"finished": 1, "rate_limited": 2}
