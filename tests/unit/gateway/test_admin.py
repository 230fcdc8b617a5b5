"""Deletion by operators: who may, what is told, and what is not known."""

import hashlib

import pytest

from chiasm.errors import EngineDeadError, InvalidSettingError
from chiasm.gateway import create_app
from chiasm.gateway.routes import processes
from chiasm.protocol.deletion import Deleted, Deletion
from chiasm.protocol.fleet import GatewayProcessState
from chiasm.settings import GatewaySettings
from tests.asgi import Call, call
from tests.fakes import FakeIngest, FakeWorker

KEYS, ADMIN = ("first-key", "second-key"), "operator"
SHA = "ab" * 32
PATHS = {
    "/admin/tenants": "GET",
    f"/admin/media/{SHA}": "DELETE",
    "/admin/tenants/anonymous/cache": "DELETE",
}


ANSWER = (Deleted(worker="w0", num_embeddings=2, num_blocks=5, num_pending=1),)


class ForgetfulWorker(FakeWorker):
    """Notes what it is to forget."""

    def __init__(self, answer=ANSWER):
        super().__init__()
        self.answer = answer
        self.deletions = []

    async def forget(self, deletion, timeout_s):
        assert timeout_s > 0
        self.deletions.append(deletion)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Spooled(FakeIngest):
    """Has one file of the medium."""

    def num_spooled(self, identity):
        return int(identity == SHA)


def app(worker=None, **settings):
    options = {"api_keys": KEYS, "admin_keys": (ADMIN,)} | settings
    return create_app(worker or ForgetfulWorker(), Spooled(), GatewaySettings(**options))


def bearer(key):
    return [("Authorization", f"Bearer {key}")]


async def admin(app_, path, method="DELETE", key=ADMIN):
    return await call(app_, path, method=method, headers=bearer(key))


@pytest.mark.parametrize(("path", "method"), PATHS.items())
async def test_only_admin_keys_open_it_and_they_open_nothing_else(path, method):
    worker = ForgetfulWorker()
    guarded = app(worker)
    for headers in ([], *(bearer(key) for key in ("", "wrong"))):
        made = await call(guarded, path, method=method, headers=headers)
        assert (made.status, made.error["code"]) == (401, "invalid_api_key")
    for key in KEYS:
        made = await call(guarded, path, method=method, headers=bearer(key))
        assert (made.status, made.error["code"]) == (403, "permission_denied")
    assert not worker.deletions
    assert (await admin(guarded, path, method)).status == 200
    for other in ("/v1/models", "/debug/receipts", "/metrics"):
        assert (await admin(guarded, other, "GET")).status == 403


@pytest.mark.parametrize(("path", "method"), PATHS.items())
@pytest.mark.parametrize("keys", [(), KEYS])
async def test_without_admin_keys_there_is_no_such_path(path, method, keys):
    worker = ForgetfulWorker()
    closed = app(worker, api_keys=keys, admin_keys=())
    made = await call(closed, path, method=method, headers=bearer(KEYS[0]))
    assert made.status == 404
    assert "gateway.admin_keys" in made.error["hint"]
    assert (await call(closed, path, method=method)).status == (401 if keys else 404)
    assert not worker.deletions


async def test_a_key_is_not_both():
    with pytest.raises(InvalidSettingError, match="in common"):
        app(admin_keys=(KEYS[0],))


@pytest.mark.parametrize("path", ["/admin/", "/admin/media", "/admin/media/", "/admin/tenants/", "/admin/x",
                                  f"/admin/media/{SHA}/", f"/admin/media/{SHA}/x"])  # fmt: skip
async def test_other_paths_below_it_are_not_found(path):
    made = await admin(app(), path)
    assert (made.status, made.error["hint"]) == (404, "GET /openapi.json")
    assert (await admin(app(), path, key=KEYS[0])).status == 403
    assert (await admin(app(), path, key="wrong")).status == 401


async def test_a_medium_is_deleted_from_everywhere():
    worker = ForgetfulWorker()
    guarded = app(worker)
    made = await admin(guarded, f"/admin/media/{SHA.upper()}")
    assert worker.deletions == [Deletion(identity=SHA)]
    assert made.json == {
        "complete": True,
        "workers": [
            {
                "worker": "w0", "num_embeddings": 2, "num_offers": 0, "num_blocks": 5,
                "num_pending": 1, "num_known": 0, "error": None,
            }
        ],
        "num_spooled": 1,
        "num_aliases": 0,
        "num_receipts": 0,
        "num_downloads": 0,
    }  # fmt: skip


async def test_names_of_deleted_media_mean_nothing_any_more():
    guarded = app()

    async def named(url, key):
        part = {"type": "image_url", "image_url": {"url": url}, "uuid": "u"}
        body = {"messages": [{"role": "user", "content": [part]}]}
        return (await call(guarded, "/v1/chat/completions", body, headers=bearer(key))).status

    assert [await named("x:1", key) for key in KEYS] == [200, 200]
    assert await named("x:2", KEYS[0]) == 400
    identity = next(iter(guarded.state.gateway.aliases._identities.values()))
    assert (await admin(guarded, f"/admin/media/{identity}")).json["num_aliases"] == 2
    assert [await named("x:2", key) for key in KEYS] == [200, 200]
    tenant = hashlib.sha256(KEYS[0].encode()).hexdigest()[:16]
    assert (await admin(guarded, f"/admin/tenants/{tenant}/cache")).json["num_aliases"] == 1
    assert [await named("x:3", key) for key in KEYS] == [200, 400]


async def test_an_operator_can_tell_tenants_and_delete_what_one_has_left():
    worker = ForgetfulWorker()
    guarded = app(worker)
    ids = [hashlib.sha256(key.encode()).hexdigest()[:16] for key in KEYS]
    listed = (await admin(guarded, "/admin/tenants", "GET")).json
    assert listed["cache_scope"] == "tenant"
    assert [(one["tenant"], one["api_key"]) for one in listed["tenants"]] == [(ids[0], 0), (ids[1], 1)]
    body = {"messages": [{"role": "user", "content": "hi"}]}
    await call(guarded, "/v1/chat/completions", body, headers=bearer(KEYS[1]))
    assert (await admin(guarded, f"/admin/tenants/{ids[1]}/cache")).status == 200
    assert [one.cache_salt for one in worker.deletions] == [worker.requests[0].cache_salt]


async def test_without_keys_everybody_is_one_tenant():
    worker = ForgetfulWorker()
    guarded = app(worker, api_keys=())
    listed = (await admin(guarded, "/admin/tenants", "GET")).json["tenants"]
    assert [(one["tenant"], "api_key" in one) for one in listed] == [("anonymous", False)]
    assert (await admin(guarded, "/admin/tenants/anonymous/cache")).status == 200
    assert worker.deletions == [Deletion(cache_salt="")]


@pytest.mark.parametrize("name", ["short", "g" * 16, "0123456789ABCDEF", "a" * 17])
async def test_what_is_no_name_of_a_tenant_or_medium_is_refused(name):
    worker = ForgetfulWorker()
    for path in (f"/admin/tenants/{name}/cache", f"/admin/media/{name}"):
        made = await admin(app(worker), path)
        assert (made.status, made.error["code"]) == (400, "invalid_request")
        assert made.error["hint"]
    assert not worker.deletions


async def test_where_tenants_share_none_has_a_part_of_its_own():
    worker = ForgetfulWorker()
    guarded = app(worker, cache_scope="shared")
    made = await admin(guarded, f"/admin/tenants/{'0' * 16}/cache")
    assert (made.status, made.error["code"]) == (400, "invalid_request")
    assert not worker.deletions
    assert (await admin(guarded, f"/admin/media/{SHA}")).status == 200


async def test_workers_that_did_not_answer_are_named_and_the_deletion_is_not_called_complete():
    answer = (Deleted(worker="w0", num_embeddings=1), Deleted(worker="w1", error="engine_dead"))
    made = await admin(app(ForgetfulWorker(answer)), f"/admin/media/{SHA}")
    assert (made.status, made.json["complete"], made.error["code"]) == (502, False, "deletion_incomplete")
    assert "w1" in made.error["message"]
    assert "w0" not in made.error["message"]
    assert [(one["worker"], one["error"]) for one in made.json["workers"]] == [("w0", None), ("w1", "engine_dead")]


async def test_an_engine_in_this_process_that_is_dead_says_so():
    made = await admin(app(ForgetfulWorker(EngineDeadError("gone"))), f"/admin/media/{SHA}")
    assert (made.status, made.error["code"]) == (503, "engine_dead")


async def test_an_engine_that_cannot_forget_says_so():
    made = await admin(app(FakeWorker()), f"/admin/media/{SHA}")
    assert (made.status, made.error["code"]) == (400, "unsupported_feature")


class Successions:
    """A server whose successor takes a while."""

    def __init__(self, *states):
        self.states = list(states)

    def gateway_process(self):
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return GatewayProcessState(pid=7, state=state, error="")

    def replace(self):
        """It is scripted."""


async def test_a_look_at_the_gateways_process_may_wait_for_a_change(monkeypatch):
    app = create_app(FakeWorker(), FakeIngest(), GatewaySettings(admin_keys=(ADMIN,)))

    async def look(query, *states):
        app.state.gateway.replaceable = Successions(*states)
        made = Call(app, "/admin/gateway", headers=bearer(ADMIN))
        made.scope["query_string"] = query.encode()
        return (await made.run()).json["state"]

    monkeypatch.setattr(processes, "_LOOK_INTERVAL_S", 0.001)
    assert await look("", "starting") == "starting", "nobody said that it should wait"
    assert await look("while=starting", "starting", "starting", "leaving") == "leaving"
    assert await look("while=serving", "starting") == "starting"
    monkeypatch.setattr(processes, "_WAIT_S", 0.01)
    assert await look("while=starting", "starting") == "starting", "it does not wait for ever"
