"""Several gateways over one store in one process: deletions and drains reach all, and are confirmed or not."""

import asyncio

import pytest

from chiasm.gateway import create_app, peers
from chiasm.protocol.deletion import Deletion
from chiasm.settings import GatewaySettings
from chiasm.sharing import link as link_room
from chiasm.sharing.link import Link
from chiasm.sharing.local import Hub, LocalStore
from tests.asgi import call
from tests.conditions import until
from tests.fakes import FakeIngest
from tests.unit.gateway.test_admin import ADMIN, SHA, ForgetfulWorker, bearer

SALT = "anonymous"


class KnowingWorker(ForgetfulWorker):
    """A fleet that knows something of contents, and says what it was told."""

    def __init__(self):
        super().__init__()
        self.forgotten, self.learned, self.drained, self.news = [], [], {}, []
        self.there = {"w0"}

    def take_notes(self, max_notes, max_bytes):
        return self.news.pop(0) if self.news else None

    def learn(self, notes):
        self.learned.append(notes)
        return 1

    def forget_known(self, deletion):
        self.forgotten.append(deletion)
        return 1

    def drain(self, name, *, is_over=False, is_told=False):
        if name not in self.there:
            return False
        self.drained[name] = not is_over
        return True


class Ingest(FakeIngest):
    def __init__(self):
        super().__init__()
        self.forgotten = []

    def forget(self, *, identity=None, tenant=None):
        self.forgotten.append(identity or tenant)
        return 0


class Front:
    """A gateway and all that belongs to it."""

    def __init__(self, name, hub):
        self.worker, self.ingest = KnowingWorker(), Ingest()
        self.link = Link(LocalStore(name, hub))
        settings = GatewaySettings(admin_keys=(ADMIN,))
        self.app = create_app(self.worker, self.ingest, settings, link=self.link)
        self.gateway = self.app.state.gateway
        self.task = None

    async def ask(self, path, method="DELETE"):
        return await call(self.app, path, method=method, headers=bearer(ADMIN))


@pytest.fixture
async def fronts(monkeypatch):
    monkeypatch.setattr(link_room, "INTERVAL_S", 0.01)
    hub = Hub()
    made = [Front(name, hub) for name in "abc"]
    for front in made:
        front.task = asyncio.create_task(front.link.run())
    await until(lambda: all(front.link.num_gateways == 3 for front in made))
    yield made
    for front in made:
        front.task.cancel()
    await asyncio.wait([front.task for front in made])


async def test_a_deletion_reaches_all_gateways_before_it_is_said_to_be_complete(fronts):
    first, *others = fronts
    for front in others:
        front.gateway.aliases.bind("anonymous", "cat", SHA, "/x")
    made = await first.ask(f"/admin/media/{SHA}")
    assert (made.status, made.json["complete"]) == (200, True)
    assert sorted(one["worker"] for one in made.json["gateways"]) == ["b", "c"]
    for front in others:
        assert front.worker.forgotten == [Deletion(identity=SHA)]
        assert front.ingest.forgotten == [SHA]
        assert front.gateway.aliases.forget_identity(SHA) == 0
        assert front.worker.deletions == [], "the workers were told by the first"
    assert first.worker.forgotten == []


async def test_a_tenants_deletion_reaches_what_other_gateways_keep_under_its_name(fronts):
    first, second, _ = fronts
    second.gateway.aliases.bind("anonymous", "cat", SHA, "/x")
    assert (await first.ask("/admin/tenants/anonymous/cache")).json["complete"]
    assert second.ingest.forgotten == ["anonymous"]
    assert second.gateway.aliases.forget_tenant("anonymous") == 0


async def test_a_gateway_that_does_not_confirm_makes_a_deletion_incomplete(fronts, monkeypatch):
    first, second, _ = fronts
    monkeypatch.setattr(peers, "_CONFIRM_TIMEOUT_S", 0.3)
    second.task.cancel()
    made = await first.ask(f"/admin/media/{SHA}")
    assert (made.status, made.json["complete"]) == (502, False)
    errors = {one["worker"]: one["error"] for one in made.json["gateways"]}
    assert errors == {"b": "deadline_exceeded", "c": None}
    assert "b" in made.error["message"]


async def test_without_the_store_a_deletion_is_done_here_and_said_to_be_incomplete(fronts, monkeypatch):
    first, second, _ = fronts

    async def gone(*_):
        raise ConnectionError("gone")

    monkeypatch.setattr(first.link.store, "announce", gone)
    monkeypatch.setattr(first.link.store, "publish", gone)
    made = await first.ask(f"/admin/media/{SHA}")
    assert not made.json["complete"]
    assert made.json["gateways"] == [
        {"worker": "store", "num_embeddings": 0, "num_offers": 0, "num_blocks": 0, "num_pending": 0, "num_known": 0,
         "error": "store_unavailable"}
    ]  # fmt: skip
    assert first.worker.deletions == [Deletion(identity=SHA)]
    assert second.worker.forgotten == []


async def test_hints_reach_others_and_none_from_before_a_deletion(fronts):
    first, second, third = fronts
    first.worker.news.append(b"hint")
    await until(lambda: second.worker.learned and third.worker.learned)
    assert second.worker.learned == [b"hint"]
    assert first.worker.learned == []
    assert (await first.ask(f"/admin/media/{SHA}")).json["complete"]
    assert await first.link.store.read("content", "0-0", 10) == []
    old = peers.encode_notes(peers.Notes("0-0", b"from before"))
    await first.link.store.publish("content", old)
    first.worker.news.append(b"from after")
    await until(lambda: second.worker.learned[-1] == b"from after")
    assert b"from before" not in second.worker.learned


async def test_a_drained_worker_is_drained_everywhere_also_at_gateways_to_come(fronts):
    first, second, _ = fronts
    made = await first.ask("/admin/workers/w0/drain", "POST")
    assert (made.status, made.json["is_draining"]) == (200, True)
    assert first.worker.drained == second.worker.drained == {"w0": True}
    late = Front("d", first.link.store._hub)
    await late.link.round()
    assert late.worker.drained == {"w0": True}
    assert (await first.ask("/admin/workers/w0/drain", "DELETE")).json["is_draining"] is False
    assert second.worker.drained == {"w0": False}
    refused = await first.ask("/admin/workers/nobody/drain", "POST")
    assert (refused.status, refused.error["code"]) == (400, "invalid_request")
    for front in (first, second):
        front.worker.there.add("nobody")
        await front.link.round()
        assert "nobody" not in front.worker.drained, "what was refused has no effect later"


async def test_a_drain_holds_for_a_worker_that_comes_back_and_ends_also_while_it_is_away():
    front = Front("a", None)
    assert (await front.ask("/admin/workers/w0/drain", "POST")).status == 200
    front.worker.drained.clear()
    await front.link.round()
    assert front.worker.drained == {"w0": True}, "started again"
    front.worker.there.clear()
    assert (await front.ask("/admin/workers/w0/drain", "DELETE")).status == 200
    assert (await front.ask("/admin/workers/w0/drain", "DELETE")).status == 400
    front.worker.there.add("w0")
    front.worker.drained.clear()
    await front.link.round()
    assert front.worker.drained == {}


async def test_a_gateway_alone_tells_nobody_and_waits_for_nobody():
    front = Front("a", None)
    made = await front.ask(f"/admin/media/{SHA}")
    assert made.json["complete"]
    assert "gateways" not in made.json
    assert (await front.ask("/admin/workers/w0/drain", "POST")).json["gateways"] == []
