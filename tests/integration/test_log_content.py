"""Whatever a request brings and however it ends, the log has no word of it, at any level and in both forms."""

import base64
import logging
from io import StringIO

import aiohttp
import pytest

from chiasm.observability.logs import configure_logging
from chiasm.settings import GatewaySettings
from tests.fakes import FakeIngest, FakeWorker, by_prompt
from tests.integration.gateway_server import Running, running

_SECRET = "zyxwv-not-for-the-log"
_CHAT = "/v1/chat/completions"
_PAYLOAD = base64.b64encode(_SECRET.encode() * 40).decode()
_SIGNED = f"https://host.example/picture.png?X-Amz-Signature={_SECRET}"


@pytest.fixture(params=["text", "json"])
def told(request):
    """Everything that is logged from now on, at the most talkative level."""
    loggers = [logging.getLogger(name) for name in ("chiasm", "uvicorn")]
    kept = [(one, one.level, one.handlers, one.propagate) for one in loggers]
    configure_logging("debug", request.param)
    page = StringIO()
    for handler in loggers[0].handlers:
        handler.setStream(page)
    yield page.getvalue
    for logger, level, handlers, propagate in kept:
        logger.setLevel(level)
        logger.handlers, logger.propagate = handlers, propagate


def chat(*parts, **more):
    content = [part if isinstance(part, dict) else {"type": "text", "text": part} for part in parts]
    return {"messages": [{"role": "user", "content": content}]} | more


def picture(url):
    return {"type": "image_url", "image_url": {"url": url}}


BODIES = {
    "answered": chat(f"hello {_SECRET}"),
    "streamed": chat(f"slow {_SECRET}", stream=True),
    "picture": chat(picture(f"data:image/png;base64,{_PAYLOAD}"), f"what {_SECRET}"),
    "broken picture": chat(picture(f"bad:{_SIGNED}"), "what"),
    "failed in the engine": chat(f"fail 1 {_SECRET}", stream=True),
    "another model": chat("hello", model=_SECRET),
    "an unknown field": chat("hello", **{_SECRET: 1}),
    "a user's name": chat("hello", user=_SECRET),
    "no JSON": f'{{"messages": "{_SECRET}'.encode(),
}


@pytest.mark.parametrize("name", BODIES)
async def test_nothing_of_a_request_is_logged(told, name):
    body = BODIES[name]
    async with running(by_prompt()) as server, aiohttp.ClientSession(server.address) as session:
        sent = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with session.post(f"{_CHAT}?key={_SECRET}", headers={"X-Note": _SECRET}, **sent) as response:
            await response.read()
        await server.until_ended(1)
    text = told()
    assert "endpoint=chat" in text, "there is a line"
    assert _SECRET not in text
    assert _PAYLOAD[:40] not in text


async def test_keys_are_not_logged_either(told):

    server = Running(FakeWorker(by_prompt()), FakeIngest(), GatewaySettings(api_keys=(_SECRET,)))
    async with server, aiohttp.ClientSession(server.address) as session:
        for key in (_SECRET, f"{_SECRET}-wrong"):
            headers = {"Authorization": f"Bearer {key}"}
            async with session.post(_CHAT, json=chat("hello"), headers=headers) as response:
                await response.read()
        await server.until_ended(1)
    text = told()
    assert "outcome=finished" in text
    assert _SECRET not in text
