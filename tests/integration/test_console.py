"""The console in a real browser: what it shows, what it sends, and that nothing in it can run that was only text."""

import itertools
from pathlib import Path

import pytest
from msgspec.structs import replace

from chiasm.observability.receipt import Attempt, Route
from chiasm.protocol.fleet import FleetState, MemberState
from chiasm.protocol.generation import RouteTaken
from chiasm.settings import GatewaySettings
from tests.fakes import FakeIngest, FakeWorker, fail, say
from tests.integration.browser import CHROMIUM, browsing
from tests.integration.gateway_server import Running

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

HOSTILE = "<img src=x onerror=window.hacked=1>"
SHOWN = "document.getElementById('status').textContent"


class Fleet(FakeWorker):
    """A worker that says it consists of three, one of which has a name that wants to be markup."""

    def fleet_state(self):
        alive = MemberState(
            name="encode-0", roles=("encode",), state="ready", device="cpu", num_encoding=2, encode_wait_s=0.25
        )
        whole = MemberState(name="prefill-0", roles=("prefill", "decode"), state="draining", stats=self.stats())
        dead = MemberState(name=HOSTILE, roles=("encode",), state="down", reason=f"It broke: {HOSTILE}")
        return FleetState(topology="e-pd", policy="adaptive", members=(alive, whole, dead))


def routed(request_script):
    async def script(request):
        attempts = (Attempt(stage="encode", worker=HOSTILE, outcome="ok"),)
        yield RouteTaken(Route(path="e-pd", policy="adaptive", reason=HOSTILE, attempts=attempts))
        async for event in request_script(request):
            yield event

    return script


@pytest.fixture
async def page(tmp_path):
    async with browsing(tmp_path) as tab:
        yield tab


async def test_a_question_is_asked_and_its_receipt_shown(page, tmp_path):
    picture = tmp_path / "p.png"
    picture.write_bytes(b"\x89PNG any bytes")
    async with Running(Fleet(routed(say())), FakeIngest(), GatewaySettings()) as running:
        await page.open(running.address + "/console")
        await page.until(f"{SHOWN} === 'ready'")
        await page.choose("#picture", picture)
        await page.evaluate(f"document.getElementById('question').value = {HOSTILE!r}")
        await page.evaluate("document.getElementById('send').focus()")
        await page.press("Enter", 13)
        await page.until("document.querySelector('#answer-receipt .fall') !== null")
        assert await page.evaluate("document.getElementById('answer').textContent") == HOSTILE
        await page.until("document.querySelectorAll('#receipts details').length === 1")
        await page.evaluate("document.querySelector('#receipts summary').focus()")
        await page.press("Enter", 13)
        await page.until("document.querySelector('#receipts details .fall') !== null")
        shown = await page.evaluate("document.body.innerText")
        for text in (
            "encode-0",
            "2 (250 ms)",
            "draining",
            HOSTILE,
            f"It broke: {HOSTILE}",
            f"e-pd ({HOSTILE})",
            "1 picture",
        ):
            assert text in shown
        assert [len(request.items) for request in running.worker.requests] == [1]
        assert await page.evaluate("window.hacked === undefined && document.querySelectorAll('img').length === 1")
    outside = [url for url in page.requested if not url.startswith((running.address, "blob:", "data:"))]
    assert outside == []
    assert page.problems == []


async def test_a_server_in_one_process_shows_what_it_encoded(page):
    class Encoding(FakeWorker):
        def stats(self):
            return replace(super().stats(), totals={"encoded_items": 41.0, "encodes_avoided_prefix": 2.0})

    async with Running(Encoding(say()), FakeIngest(), GatewaySettings()) as running:
        await page.open(running.address + "/console")
        await page.until("document.getElementById('avoided').innerText.includes('41')")
        shown = await page.evaluate("document.getElementById('avoided').innerText")
        assert shown.split() == ["encoded", "41", "avoided:", "prefix", "2"]
    assert page.problems == []


async def test_a_video_is_sent_as_one(page, tmp_path):
    class Seeing(FakeIngest):
        references = ()

        async def collect(self, references, *rest):
            self.references = references
            return await super().collect(references, *rest)

    clip, ingest = tmp_path / "clip.mp4", Seeing()
    clip.write_bytes(b"any bytes")
    async with Running(FakeWorker(say()), ingest, GatewaySettings()) as running:
        await page.open(running.address + "/console")
        await page.until(f"{SHOWN} === 'ready'")
        await page.choose("#picture", clip)
        await page.until("document.getElementById('previews').textContent === 'clip.mp4'")
        await page.evaluate("document.getElementById('send').click()")
        await page.until("document.querySelector('#answer-receipt .fall') !== null")
    [reference] = ingest.references
    assert (reference.kind, reference.url[:22]) == ("video", "data:video/mp4;base64,")
    assert page.problems == []


async def test_a_failure_is_told_where_the_answer_would_stand(page):
    from chiasm.errors import ContextLengthError

    async with Running(
        FakeWorker(fail(ContextLengthError("Too long", hint="Shorten it"))), FakeIngest(), GatewaySettings()
    ) as running:
        await page.open(running.address + "/console")
        await page.until(f"{SHOWN} === 'ready'")
        await page.evaluate("document.getElementById('send').click()")
        await page.until("document.querySelector('#answer .problem') !== null")
        assert await page.evaluate("document.getElementById('answer').textContent") == "Too long. Shorten it"
        await page.until("document.getElementById('endings').textContent.includes('context length exceeded')")


async def test_an_answer_can_be_stopped(page):
    async with Running(FakeWorker(say(delay_s=600)), FakeIngest(), GatewaySettings()) as running:
        await page.open(running.address + "/console")
        await page.until(f"{SHOWN} === 'ready'")
        await page.evaluate("document.getElementById('send').click()")
        await running.worker.started.wait()
        await page.evaluate("document.getElementById('stop').click()")
        await page.until("document.getElementById('answer').textContent === 'Stopped.'")
        await running.until_idle()


async def test_with_keys_the_page_loads_without_one_and_shows_nothing_before(page):
    async with Running(Fleet(say()), FakeIngest(), GatewaySettings(api_keys=("right",))) as running:
        await page.open(running.address + "/console")
        await page.until(f"{SHOWN} === 'needs a key'")
        assert "encode-0" not in await page.evaluate("document.body.innerText")
        for key, status in (("wrong", "needs a key"), ("right", "ready")):
            await page.until("!document.getElementById('key-form').hidden")
            await page.evaluate(f"document.getElementById('key').value = {key!r}")
            await page.evaluate("document.querySelector('#key-form button').click()")
            await page.until("document.getElementById('key').value === ''")
            await page.until(f"{SHOWN} === {status!r}")
        assert await page.evaluate("document.getElementById('key-form').hidden")
        await page.until("document.body.innerText.includes('encode-0')")
        assert "right" not in " ".join(page.requested)


async def test_a_key_that_is_for_something_else_is_told_what_it_lacks(page):
    settings = GatewaySettings(api_keys=("right",), admin_keys=("operator",))
    async with Running(Fleet(say()), FakeIngest(), settings) as running:
        await page.open(running.address + "/console")
        await page.until("!document.getElementById('key-form').hidden")
        for key, said in (("wrong", "does not take this key"), ("operator", "Use a key with the scope")):
            await page.evaluate(f"document.getElementById('key').value = {key!r}")
            await page.evaluate("document.querySelector('#key-form button').click()")
            await page.until(f"document.getElementById('key-problem').textContent.includes({said!r})")


async def test_nothing_is_clipped_and_text_can_be_read(page):
    checks = Path(__file__).with_name("console_checks.js").read_text()
    async with Running(Fleet(say()), FakeIngest(), GatewaySettings()) as running:
        for scheme, width in itertools.product(("light", "dark"), (360, 800, 1280)):
            await page.open(running.address + "/console", width=width, scheme=scheme)
            await page.until(f"{SHOWN} === 'ready'")
            await page.until("document.querySelectorAll('.worker').length === 3")
            found = await page.evaluate(checks)
            assert found["clipped"] == []
            assert not found["isWiderThanTheScreen"]
            assert found["leastContrast"] >= 4.5
