"""Keys: every path, every spelling, every way of sending them."""

import pytest

from chiasm.asgi.auth import OPEN_PATHS
from chiasm.gateway import create_app
from chiasm.gateway.console.routes import console_paths
from chiasm.settings import GatewaySettings
from tests.asgi import call
from tests.fakes import FakeIngest, FakeWorker

KEYS = ("first-key", "second-key")


def app(keys=KEYS):
    return create_app(FakeWorker(), FakeIngest(), GatewaySettings(api_keys=keys))


def spellings(path):
    yield from {
        path,
        path.upper(),
        path + "/",
        "/" + path,
        path + "//",
        path.replace("/", "//"),
        "/." + path,
        path + "/.",
        "/x/.." + path,
        path + "/../health",
        "/health/.." + path,
        "/ready/../" + path,
        "/health" + path,
        path + ";/health",
        path + "?/health",
        path + "#/health",
        path + "%2F",
        "%2F" + path.lstrip("/"),
        path.replace("/", "/%2e/"),
        path + "\x00",
        path.replace("o", "ο"),
    }


ROUTES = [route.path.replace("{id:path}", "fake").replace("{id}", "x") for route in app().routes]
ELSEWHERE = ["/", "", "/nowhere", "/HEALTH", "/Health", "/health/", "//health", "/health/ready", "/v1/embeddings",
             "/rerank", "/v1/rerank", "/v2/rerank", "//rerank", "/rerank/", "/%2Frerank", "/score", "/classify",
             "/pooling"]  # fmt: skip
PATHS = sorted({*ELSEWHERE, *(spelt for path in ROUTES for spelt in spellings(path))} - OPEN_PATHS - console_paths())


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "get", "FOO"])
async def test_without_a_key_every_path_is_401(method):
    guarded = app()
    for path in PATHS:
        made = await call(guarded, path, method=method)
        assert (made.status, made.error["code"]) == (401, "invalid_api_key"), (method, path)
        assert made.headers["www-authenticate"] == "Bearer"
        assert made.headers.keys() == {"content-type", "content-length", "www-authenticate"}


@pytest.mark.parametrize(
    "headers",
    [
        [("Authorization", "Bearer wrong")],
        [("Authorization", "Bearer ")],
        [("Authorization", "Bearer")],
        [("Authorization", "")],
        [("Authorization", "first-key")],
        [("Authorization", "Basic first-key")],
        [("Authorization", "Bearer first-ke")],
        [("Authorization", "Bearer first-key1")],
        [("Authorization", "Bearer FIRST-KEY")],
        [("Authorization", "Bearer first-key, Bearer second-key")],
        [("Authorization", "Bearer first-key second-key")],
        [("Authorization", "Bearer first-key"), ("Authorization", "Bearer first-key")],
        [("Authorization", "Bearer wrong"), ("Authorization", "Bearer first-key")],
        [("Api-Key", "first-key")],
        [("X-Api-Key", "first-key")],
    ],
)
async def test_anything_but_one_right_key_is_401(headers):
    assert (await call(app(), "/v1/models", headers=headers)).status == 401


@pytest.mark.parametrize("value", ["Bearer first-key", "bearer second-key", "BEARER first-key", "Bearer  first-key "])
async def test_each_configured_key_opens(value):
    assert (await call(app(), "/v1/models", headers=[("Authorization", value)])).status == 200


async def test_a_refused_request_is_not_counted_and_its_body_not_read():
    guarded = app()
    made = await call(guarded, "/v1/chat/completions", pieces=[None])
    assert made.status == 401
    assert guarded.state.gateway.receipts.latest(1) == []


@pytest.mark.parametrize("path", sorted(OPEN_PATHS))
async def test_health_and_readiness_need_no_key(path):
    assert (await call(app(), path)).status == 200


async def test_without_configured_keys_all_is_open():
    assert (await call(app(()), "/v1/models")).status == 200
    assert (await call(app(()), "/v1/models", headers=[("Authorization", "Bearer any")])).status == 200


async def test_an_empty_configured_key_opens_nothing():
    assert (await call(app(("",)), "/v1/models", headers=[("Authorization", "Bearer ")])).status == 401
    assert (await call(app(("",)), "/v1/models")).status == 401


@pytest.mark.parametrize("scope", ["tenant", "shared"])
async def test_the_worker_is_told_whose_caches_a_request_may_use_and_never_the_key(scope):
    worker = FakeWorker()
    guarded = create_app(worker, FakeIngest(), GatewaySettings(api_keys=KEYS, cache_scope=scope))
    for key in (*KEYS, *KEYS):
        body = {"messages": [{"role": "user", "content": "hi"}]}
        made = await call(guarded, "/v1/chat/completions", body, headers=[("Authorization", f"Bearer {key}")])
        assert made.status == 200
    salts = [request.cache_salt for request in worker.requests]
    assert salts[:2] == salts[2:]
    assert len(set(salts)) == (1 if scope == "shared" else 2)
    assert not any(key in salt for key in KEYS for salt in salts)
    open_worker = FakeWorker()
    await call(create_app(open_worker, FakeIngest(), GatewaySettings()), "/v1/chat/completions", body)
    assert [request.cache_salt for request in open_worker.requests] == [""]


async def test_tenants_do_not_share_names_of_pictures():
    guarded = app()

    async def named(url, key):
        part = {"type": "image_url", "image_url": {"url": url}, "uuid": "u"}
        body = {"messages": [{"role": "user", "content": [part]}]}
        return await call(guarded, "/v1/chat/completions", body, headers=[("Authorization", f"Bearer {key}")])

    assert (await named("x:1", KEYS[0])).status == 200
    assert (await named("x:2", KEYS[1])).status == 200
    assert (await named("x:2", KEYS[0])).status == 400
