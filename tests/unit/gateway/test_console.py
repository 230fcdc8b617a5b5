"""The console's files and the state that they show, without a browser."""

import re

import pytest

from chiasm.gateway import create_app
from chiasm.gateway.console.routes import console_paths
from chiasm.protocol.fleet import FleetState, MemberState
from chiasm.settings import GatewaySettings
from tests.asgi import call
from tests.fakes import FakeIngest, FakeWorker, fail, say


def _app(worker=None, **settings):
    return create_app(worker or FakeWorker(), FakeIngest(), GatewaySettings(**settings))


async def _text(path):
    made = await call(_app(api_keys=("k",)), path)
    assert made.status == 200
    return made.body.decode()


async def test_files_need_no_key_and_the_state_does():
    guarded = _app(api_keys=("k",))
    for path in console_paths():
        made = await call(guarded, path)
        assert made.status == 200
        policy = made.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert made.headers["x-content-type-options"] == "nosniff"
    assert (await call(guarded, "/debug/state")).status == 401
    assert (await call(guarded, "/console/../debug/state")).status == 401
    assert (await call(guarded, "/debug/state", headers=[("Authorization", "Bearer k")])).status == 200


async def test_everything_that_the_page_asks_for_is_there():
    page = await _text("/console")
    wanted = {f"/{path}" for path in re.findall(r'(?:href|src)="(console/[^"]+)"', page)}
    for path in console_paths() - {"/console"}:
        if path.endswith(".js"):
            wanted |= {f"/console/{name}" for name in re.findall(r'from "\./([^"]+)"', await _text(path))}
    assert wanted | {"/console"} == console_paths()


async def test_nothing_comes_from_elsewhere_and_nothing_is_inline():
    for path in sorted(console_paths()):
        text = (await _text(path)).replace("http://www.w3.org/2000/svg", "")
        assert "//" not in re.sub(r"^\s*//.*$|\s// .*$", "", text, flags=re.MULTILINE), path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), path
    page = await _text("/console")
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|<script(?![^>]*src=)", page)


async def test_every_id_that_scripts_use_is_on_the_page():
    ids = set(re.findall(r'id="([^"]+)"', await _text("/console")))
    used = {
        name
        for path in console_paths()
        if path.endswith(".js")
        for name in re.findall(r'\$\("([^"]+)"\)', await _text(path))
    }
    assert used
    assert used <= ids


async def test_every_stage_has_a_colour():
    from chiasm.observability.receipt import STAGES

    style, script = await _text("/console/style.css"), await _text("/console/receipts.js")
    for stage in (*STAGES, "unaccounted", "decode"):
        assert f"--{stage}:" in style
        assert f'"{stage}"' in script


async def test_the_state_of_one_worker():
    app = _app()
    await call(app, "/v1/chat/completions", {"messages": [{"role": "user", "content": "a b c"}]})
    state = (await call(app, "/debug/state")).json
    assert state["requests"] == {"num_open": 0, "num_running": 0, "num_queued": 0, "outcomes": {"finished": 1.0}}
    assert (state["totals"]["requests"], state["totals"]["output_tokens"]) == (1, 3)
    assert state["is_ready"]
    assert [one["state"] for one in state["fleet"]["members"]] == ["ready"]
    assert state["fleet"]["members"][0]["stats"]["is_healthy"]


async def test_endings_are_summed_over_endpoints():
    from chiasm.errors import ContextLengthError

    worker = FakeWorker(say())
    app = _app(worker)
    await call(app, "/v1/completions", {"prompt": "a"})
    worker.script = fail(ContextLengthError("too long"))
    for path, body in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        await call(app, path, body)
    state = (await call(app, "/debug/state")).json
    assert state["requests"]["outcomes"] == {"finished": 1.0, ContextLengthError.code: 2.0}


async def test_a_fleet_tells_of_its_members():
    class Fleet(FakeWorker):
        def fleet_state(self):
            member = MemberState(name="encode-0", roles=("encode",), state="down", reason="gone")
            return FleetState(topology="e-pd", policy="adaptive", members=(member,))

    fleet = (await call(_app(Fleet()), "/debug/state")).json["fleet"]
    assert (fleet["topology"], fleet["members"][0]["name"], fleet["members"][0]["reason"]) == (
        "e-pd",
        "encode-0",
        "gone",
    )


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_files_are_only_read(method):
    assert (await call(_app(), "/console", method=method)).status == 405
