"""The gateway with the real media ingest: what reaches the worker, what is refused, and downloads that are given up."""

import asyncio
import base64
import hashlib
import json
import logging

import pytest

from chiasm.errors import ChiasmError
from chiasm.media import Spool, read_source
from chiasm.media.ingest import MediaIngest
from chiasm.protocol.generation import ChoiceFinished
from chiasm.settings import GatewaySettings, MediaSettings
from tests.fakes import FakeWorker, fail, finished, token
from tests.fakes import hang as hang_up
from tests.faults.loopback import Loopback, answer, hang
from tests.integration.gateway_server import Running, connected, post_bytes, read_response, until
from tests.unit.media.pictures import encode, gradient, noise

ONE, TWO = encode(gradient(), "png"), encode(noise(64, 48), "png")


def data_url(data, wrap=False):
    text = base64.b64encode(data).decode()
    return "data:image/png;base64," + ("\n".join(text[i : i + 76] for i in range(0, len(text), 76)) if wrap else text)


def ask(*urls, **fields):
    content = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return post_bytes(json.dumps({"messages": [{"role": "user", "content": content}], **fields}).encode())


class RealIngest(MediaIngest):
    """Counts what is open, as the stand-in does."""

    num_open = 0

    async def collect(self, *arguments):
        self.num_open += 1
        try:
            return await super().collect(*arguments)
        finally:
            self.num_open -= 1


@pytest.fixture
async def upstream():
    async with Loopback() as made:
        yield made


@pytest.fixture
async def server(upstream):
    media = MediaSettings(
        allowed_domains=("127.0.0.1",),
        allowed_private_hosts=("127.0.0.1",),
        allow_http=True,
        allowed_ports=(upstream.port,),
        fetch_timeout_s=20.0,
    )
    ingest = RealIngest(media, None)
    async with Running(FakeWorker(), ingest, GatewaySettings()) as made:
        yield made
    await ingest.aclose()


@pytest.fixture
async def spooling(tmp_path):
    """A server whose workers are other processes."""
    media = MediaSettings(spool_directory=str(tmp_path / "spool"))
    spool = Spool(media)
    ingest = RealIngest(media, None, spool=spool)
    async with Running(FakeWorker(), ingest, GatewaySettings()) as made:
        made.spool, made.media = spool, media
        yield made
    await ingest.aclose()
    spool.close()


async def post(server, message):
    async with connected(server) as (reader, writer):
        writer.write(message)
        status, _, body = await read_response(reader)
        return status, json.loads(body)


async def test_items_reach_the_worker_in_order_under_the_identity_of_their_bytes(server, upstream):
    upstream.behaviours["/two.png"] = answer(TWO)
    status, _ = await post(server, ask(data_url(ONE), upstream.url("/two.png?signature=a"), data_url(ONE, wrap=True)))
    assert status == 200
    items = server.worker.requests[0].items
    assert [item.identity for item in items] == [hashlib.sha256(data).hexdigest() for data in (ONE, TWO, ONE)]
    assert [item.source.data for item in items] == [ONE, TWO, ONE]
    assert (items[1].width, items[1].height, items[1].format) == (64, 48, "png")
    assert "fetch" in server.gateway.receipts.latest(1)[0].stages_s


async def test_spooled_media_are_there_until_the_first_token(spooling):
    seen, may_end = [], asyncio.Event()

    async def script(request):
        seen.append([read_source(item.source, spooling.media) for item in request.items])
        yield token(0, "a", request)
        await may_end.wait()
        yield ChoiceFinished(0, "stop")
        yield finished(request, 1)

    spooling.worker.script = script
    asking = asyncio.create_task(post(spooling, ask(data_url(ONE), data_url(TWO), data_url(ONE))))
    await until(lambda: seen)
    await until(lambda: not spooling.spool.num_files)
    assert not asking.done()
    may_end.set()
    assert (await asking)[0] == 200
    assert seen == [[ONE, TWO, ONE]]


@pytest.mark.parametrize("how", ["fails", "leaves", "bad item"])
async def test_requests_that_end_early_leave_no_files(spooling, how):
    spooling.worker.script = fail(ChiasmError("no")) if how == "fails" else hang_up()
    bad = ["data:image/png;base64,AAAA"] if how == "bad item" else []
    async with connected(spooling) as (reader, writer):
        writer.write(ask(data_url(ONE), data_url(TWO), *bad))
        if how == "leaves":
            await until(lambda: spooling.spool.num_files == 2)
        else:
            assert (await read_response(reader))[0] == (500 if how == "fails" else 400)
    await spooling.until_idle()
    # The answer does not wait for a sibling's thread that is still writing: its bytes are let go of when it is done.
    await until(lambda: (spooling.spool.num_files, spooling.spool.num_bytes) == (0, 0))


@pytest.mark.parametrize(
    "url",
    ["http://10.0.0.1/a?token=hush", "http://localhost:{port}/a?token=hush", "http://127.0.0.1:1/a?token=hush",
     "file:///etc/passwd?token=hush", "gopher://x/token=hush", "http://hush:hush@127.0.0.1:{port}/a"],
)  # fmt: skip
async def test_refused_references_touch_nobody_and_leak_nothing(server, upstream, url, caplog):
    with caplog.at_level(logging.DEBUG):
        status, body = await post(server, ask(data_url(ONE), url.format(port=upstream.port)))
    assert (status, body["error"]["code"]) == (400, "media_refused")
    assert body["error"]["param"] == "/messages/0/content/1/image_url/url"
    assert "item 1" in body["error"]["message"]
    assert upstream.num_connections == 0
    assert "hush" not in json.dumps(body) + caplog.text
    assert server.worker.requests == []


async def test_leaving_gives_up_the_download(server, upstream):
    upstream.behaviours["/hang"] = hang
    async with connected(server) as (_, writer):
        writer.write(ask(upstream.url("/hang")))
        await until(lambda: upstream.requests)
        assert upstream.num_open == 1
    await server.until_idle()
    await until(lambda: upstream.num_open == 0)
    assert server.outcomes() == {"cancelled": 1}


async def test_the_deadline_gives_up_the_download(server, upstream):
    upstream.behaviours["/hang"] = hang
    status, body = await post(server, ask(upstream.url("/hang"), chiasm={"timeout_s": 0.3}))
    assert (status, body["error"]["code"]) == (504, "deadline_exceeded")
    await until(lambda: upstream.num_open == 0)


async def test_a_dead_server_is_the_callers_error(server, upstream):
    upstream.behaviours["/gone"] = answer(b"", "404 Not Found")
    status, body = await post(server, ask(upstream.url("/gone?signature=hush")))
    assert (status, body["error"]["code"]) == (400, "media_fetch_failed")
    assert "hush" not in json.dumps(body)


async def test_sixty_pictures_of_one_size_are_sixty_items(server):
    pictures = [encode(noise(16, 16, seed), "png") for seed in range(60)]
    calls = [
        post(server, ask(*(data_url(picture) for picture in pictures[start : start + 15])))
        for start in range(0, 60, 15)
    ]
    assert [status for status, _ in await asyncio.gather(*calls)] == [200] * 4
    identities = {item.identity for request in server.worker.requests for item in request.items}
    assert len(identities) == 60
