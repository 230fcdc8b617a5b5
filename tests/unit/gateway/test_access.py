"""Every route, with every kind of key: who gets in, what is counted, what another tenant sees."""

import asyncio
import json
import stat

import pytest
from starlette.routing import Route

from chiasm.errors import InvalidSettingError
from chiasm.gateway import create_app
from chiasm.gateway.console.routes import console_paths
from chiasm.settings import GatewaySettings
from chiasm.tenancy.edit import new_key
from chiasm.tenancy.keys import SCOPES, tenant_of
from tests.asgi import Call, call
from tests.conditions import until
from tests.fakes import FakeIngest, FakeWorker, hang, say
from tests.pooling_fakes import FakePoolingWorker
from tests.unit.gateway.test_admin import ForgetfulWorker

CHAT = "/v1/chat/completions"
OPEN = {"/health", "/ready"} | console_paths()
SHA = "ab" * 32
METRICS = {"/metrics", "/debug/state", "/debug/memory", "/debug/policy"}
GENERATION = {CHAT, "/v1/completions"}


_OPEN = []


@pytest.fixture(autouse=True)
def closed():
    """Close the audit files of a test's servers."""
    yield
    while _OPEN:
        _OPEN.pop().audit.close()


class Server:
    """A gateway over a keys file, with a key per (tenant, scope)."""

    def __init__(self, tmp_path, worker=None, limits="", **settings):
        self.path = tmp_path / "keys.toml"
        self.path.write_text(limits)
        self.keys = {
            (tenant, scope): new_key(self.path, tenant, [scope]) for tenant in ("acme", "other") for scope in SCOPES
        }
        self.worker = worker or FakeWorker()
        self.audit = tmp_path / "audit.jsonl"
        options = {"keys_file": str(self.path), "audit_file": str(self.audit)} | settings
        self.app = create_app(self.worker, FakeIngest(), GatewaySettings(**options))
        self.gateway = self.app.state.gateway
        _OPEN.append(self.gateway)

    async def call(self, path, body=None, *, scope="infer", tenant="acme", method=None, key=None):
        key = key if key is not None else self.keys[tenant, scope]
        return await call(self.app, path, body, method=method, headers=[("Authorization", f"Bearer {key}")])

    async def chat(self, tenant="acme", text="one two", **fields):
        body = {"messages": [{"role": "user", "content": text}], **fields}
        return await self.call(CHAT, body, tenant=tenant)

    def audited(self):
        return [json.loads(line) for line in self.audit.read_text().splitlines()]


def routes(app):
    """Every path of the table, with a method that it takes, also below /admin/."""
    yield from (route for route in app.routes if isinstance(route, Route))
    yield from app._admin._app._app.routes


def walk(app):
    for route in routes(app):
        path = route.path.replace("{id:path}", "fake").replace("{id}", "x").replace("{sha256}", SHA)
        yield path.replace("{tenant}", "acme"), "GET" if "GET" in route.methods else min(route.methods)


def wanted(path):
    if path.startswith("/admin/"):
        return {"admin"}
    if path in GENERATION:
        return {"infer"}
    if path in METRICS:
        return {"metrics"}
    if path in {"/v1/models", "/v1/models/fake", "/version", "/openapi.json", "/debug/receipts", "/debug/receipts/x"}:
        return SCOPES - {"admin"}
    return {"pool"}


async def test_every_route_takes_the_keys_that_are_for_it_and_no_others(tmp_path):
    server = Server(tmp_path, ForgetfulWorker())
    paths = dict(walk(server.app))
    assert len(paths) > 20
    assert {"/admin/keys", "/rerank", CHAT, "/debug/state", f"/admin/media/{SHA}"} <= paths.keys()
    for path, method in paths.items():
        if path in OPEN:
            assert (await call(server.app, path)).status == 200
            continue
        none = await call(server.app, path, method=method)
        wrong = await server.call(path, method=method, key="chiasm-00000000-wrong")
        assert [(made.status, made.error["code"]) for made in (none, wrong)] == [(401, "invalid_api_key")] * 2, path
        assert none.body == wrong.body
        for (tenant, scope), key in server.keys.items():
            made = await server.call(path, method=method, key=key)
            if scope in wanted(path):
                assert made.status not in {401, 403, 405, 500}, (path, scope, made.status)
            else:
                assert (made.status, made.error["code"]) == (403, "permission_denied"), (path, scope, tenant)


@pytest.mark.parametrize("path", ["/", "/nowhere", "/v1/chat/completions/", "//metrics", "/METRICS", "/admin"])
async def test_paths_that_lead_nowhere_say_so_only_to_keys(tmp_path, path):
    server = Server(tmp_path)
    assert (await call(server.app, path)).status == 401
    assert (await server.call(path, scope="admin")).status == 403
    assert (await server.call(path)).status == 404


async def test_receipts_are_their_tenants(tmp_path):
    server = Server(tmp_path)
    made = await server.chat("acme")
    request_id = made.headers["x-request-id"]
    for scope in SCOPES - {"admin"}:
        assert (await server.call(f"/debug/receipts/{request_id}", scope=scope)).status == 200
        other = await server.call(f"/debug/receipts/{request_id}", scope=scope, tenant="other")
        unknown = await server.call("/debug/receipts/chatcmpl-0", scope=scope, tenant="other")
        assert (other.status, other.body) == (404, unknown.body)
        assert (await server.call("/debug/receipts", scope=scope, tenant="other")).json == {"receipts": []}
    listed = (await server.call("/admin/receipts", scope="admin", tenant="other")).json["receipts"]
    assert [(one["tenant"], one["receipt"]["request_id"]) for one in listed] == [("acme", request_id)]


async def test_numbers_for_everybody_name_no_tenant(tmp_path):
    server = Server(tmp_path)
    await server.chat("acme")
    for path in METRICS:
        text = (await server.call(path, scope="metrics", tenant="other")).body.decode()
        assert "acme" not in text
        assert "chatcmpl" not in text


async def test_both_keys_of_a_tenant_share_its_caches_and_another_tenant_does_not(tmp_path):
    server = Server(tmp_path)
    second = new_key(server.path, "acme", ["infer"])
    file_keys = server.gateway.tenants
    from chiasm.tenancy.file import read_keys_file

    file_keys.take(read_keys_file(server.path))
    body = {"messages": [{"role": "user", "content": "hi"}]}
    for key in (server.keys["acme", "infer"], second, server.keys["other", "infer"]):
        assert (await server.call(CHAT, body, key=key)).status == 200
    first, again, other = [request.cache_salt for request in server.worker.requests]
    assert first == again != other
    assert "" not in {first, other}


async def test_the_two_forms_of_keys_work_side_by_side(tmp_path):
    server = Server(tmp_path, api_keys=("simple",), admin_keys=("operator",))
    assert (await server.call("/v1/models", key="simple")).status == 200
    assert (await server.call("/metrics", key="simple")).status == 200
    assert (await server.call("/v1/models")).status == 200
    tenants = (await server.call("/admin/tenants", key="operator")).json["tenants"]
    assert [one["tenant"] for one in tenants] == [tenant_of("simple"), "acme", "other"]
    assert (await server.call("/admin/keys", key="simple")).status == 403


async def test_requests_beyond_a_limit_are_told_when_to_come_back(tmp_path):
    server = Server(tmp_path, limits="[tenants.acme]\nmax_requests_per_minute = 12\n")
    assert [(await server.chat()).status for _ in range(4)] == [200, 200, 429, 429]
    made = await server.chat()
    assert (made.error["code"], made.error["type"]) == ("rate_limited", "rate_limit_error")
    assert 1 <= int(made.headers["retry-after"]) <= 5
    assert (await server.chat("other")).status == 200
    assert (await server.call("/v1/models")).status == 200
    outcomes = server.gateway.metrics.outcomes()
    assert outcomes == {"finished": 3, "rate_limited": 3}
    acme = (await server.call("/admin/tenants", scope="admin")).json["tenants"][0]
    assert (acme["num_requests"], acme["num_refused"]) == (2, {"max_requests_per_minute": 3})


@pytest.mark.parametrize("limit", ["tokens", "media_bytes", "visual_tokens"])
async def test_tokens_and_media_are_counted_and_limited(tmp_path, limit):
    server = Server(tmp_path, limits=f"[tenants.acme]\nmax_{limit}_per_minute = 1\n")
    part = [{"type": "image_url", "image_url": {"url": "x:1"}}, {"type": "text", "text": "what is"}]
    assert (await server.chat(text=part)).status == 200
    made = await server.chat(text="words")
    assert (made.status, made.error["code"]) == (429, "rate_limited")
    acme = server.gateway.tenants.uses()[0]
    assert (acme.num_tokens, acme.num_visual_tokens) == (10 + 4 + 2, 4)
    assert acme.num_media_bytes > 0


async def test_what_was_streamed_counts_when_the_client_leaves(tmp_path):
    server = Server(tmp_path, FakeWorker(hang(3)))
    body = {"messages": [{"role": "user", "content": "a b c d"}], "stream": True}
    made = Call(server.app, CHAT, body, headers=[("Authorization", f"Bearer {server.keys['acme', 'infer']}")])
    running = asyncio.create_task(made.run())
    await until(lambda: b" c" in made.body)
    made.leave()
    await running
    assert server.gateway.tenants.uses()[0].num_tokens == 3


async def test_open_requests_of_a_tenant_are_bounded_and_pooling_counts(tmp_path):
    limits = "[tenants.acme]\nmax_concurrent_requests = 1\n"
    server = Server(tmp_path, FakeWorker(hang()), limits=limits)
    body = {"messages": [{"role": "user", "content": "a"}]}
    made = Call(server.app, CHAT, body, headers=[("Authorization", f"Bearer {server.keys['acme', 'infer']}")])
    running = asyncio.create_task(made.run())
    await until(lambda: server.gateway.admission.num_running == 1)
    assert (await server.chat()).error["code"] == "rate_limited"
    assert (await server.call("/rerank", {"query": "q", "documents": ["d"]}, scope="pool")).status == 429
    made.leave()
    await running
    assert server.gateway.tenants.uses()[0].num_open == 0


async def test_pooling_is_charged_to_its_tenant(tmp_path):
    server = Server(tmp_path, FakePoolingWorker(("embed",)))
    assert (await server.call("/v1/embeddings", {"input": "hello there"}, scope="pool")).status == 200
    acme = server.gateway.tenants.uses()[0]
    assert acme.num_requests == 1
    assert acme.num_tokens > 0


async def test_a_tenant_cannot_fill_the_queue_for_another(tmp_path):
    server = Server(tmp_path, FakeWorker(say(0.01)), max_running_requests=1, max_queued_requests=3)
    flood = [asyncio.create_task(server.chat("acme", "a " * 20)) for _ in range(4)]
    await until(lambda: server.gateway.admission.num_open == 4)
    assert (await server.chat("acme")).error["code"] == "overloaded"
    assert (await server.chat("other")).status == 200
    statuses = sorted([(await one).status for one in flood])
    assert statuses == [200, 200, 200, 429]
    assert server.gateway.admission.num_open == 0


async def test_acts_of_operators_are_written_down_without_secrets(tmp_path):
    server = Server(tmp_path, ForgetfulWorker())
    await server.call(f"/admin/media/{SHA}", method="DELETE", scope="admin")
    await server.call("/admin/keys", scope="admin")
    await server.call("/admin/keys", scope="infer")
    lines = server.audited()
    assert [(one["act"], one["method"], one.get("status")) for one in lines] == [
        ("request", "DELETE", None), ("response", "DELETE", 200), ("request", "GET", None)
    ]  # fmt: skip
    assert all(one["key"] in server.keys["acme", "admin"] for one in lines)
    assert not any(key.split("-", 2)[2] in server.audit.read_text() for key in server.keys.values())
    assert stat.S_IMODE(server.audit.stat().st_mode) == 0o600


async def test_nothing_is_done_that_cannot_be_written_down(tmp_path, monkeypatch):
    server = Server(tmp_path, ForgetfulWorker())

    def full(act, details):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(server.gateway.audit, "record", full)
    made = await server.call(f"/admin/media/{SHA}", method="DELETE", scope="admin")
    assert made.status == 500
    assert not server.worker.deletions


def test_an_audit_file_that_cannot_be_written_is_told_at_start(tmp_path):
    settings = GatewaySettings(audit_file=str(tmp_path / "none" / "audit"))
    with pytest.raises(InvalidSettingError, match="audit_file"):
        create_app(FakeWorker(), FakeIngest(), settings)


async def test_keys_are_listed_without_what_opens_anything(tmp_path):
    server = Server(tmp_path)
    made = await server.call("/admin/keys", scope="admin")
    assert {(one["tenant"], *one["scopes"]) for one in made.json["keys"]} == set(server.keys)
    text = made.body.decode()
    assert not any(key.encode().hex() in text or key.split("-", 2)[2] in text for key in server.keys.values())
    assert "sha256" not in text
    assert made.json["fault"] is None


async def test_the_lifetime_of_everything_kept_is_said_and_deletions_reach_it(tmp_path):
    server = Server(tmp_path, ForgetfulWorker(), receipt_ttl_s=60.0)
    kept = {one["what"]: one for one in (await server.call("/admin/retention", scope="admin")).json["kept"]}
    assert kept["receipts"]["lifetime_s"] == 60.0
    assert {"media spool", "embeddings", "prefix cache", "routing by content", "log", "audit log"} <= kept.keys()
    assert all(one["lifetime_s"] or one["bound"] for one in kept.values())
    await server.chat("acme")
    await server.chat("other")
    gone = (await server.call("/admin/tenants/acme/cache", scope="admin", method="DELETE")).json
    assert gone["num_receipts"] == 1
    assert [tenant for tenant, _ in server.gateway.receipts.latest_with_tenants(9)] == ["other"]
    assert server.worker.deletions[0].cache_salt == server.worker.requests[0].cache_salt


async def test_receipts_hold_no_hash_of_a_medium(tmp_path):
    server = Server(tmp_path)
    await server.chat(text=[{"type": "image_url", "image_url": {"url": "x:1"}}, {"type": "text", "text": "what"}])
    (identity,) = {item.identity for item in server.worker.requests[0].items}
    assert identity not in (await server.call("/debug/receipts")).body.decode()
