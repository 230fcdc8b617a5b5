"""What every store of shared state does, over the one in this process and real servers of Redis and Valkey."""

import asyncio

import pytest

from chiasm.errors import InvalidSettingError
from chiasm.settings import GatewaySettings
from chiasm.sharing.base import FIRST, PermitAsk, RateAsk, order_of
from chiasm.sharing.local import Hub, LocalStore
from chiasm.sharing.redis import RedisStore
from chiasm.sharing.registry import make_store
from tests.integration.tls_front import tls_front
from tests.redis_server import redis_server

PATIENT_S = 30.0


RULES = "~{chiasm}:* resetchannels -@all +@read +@write +@scripting +@connection +time"
"""What docs/guides/high_availability.md lets a store's user do."""


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture(scope="module")
def valkey(tmp_path_factory):
    with redis_server(tmp_path_factory.mktemp("valkey"), kind="valkey") as running:
        yield running


@pytest.fixture(params=["local", "redis", "valkey"])
async def stores(request):
    """Three gateways' stores over the same, empty state."""
    names = ("a", "b", "c")
    if request.param == "local":
        hub = Hub()
        yield [LocalStore(name, hub) for name in names]
        return
    made = [RedisStore(name, request.getfixturevalue(request.param).url, timeout_s=PATIENT_S) for name in names]
    await made[0]._redis.flushall()
    yield made
    for store in made:
        await store.aclose()


async def until(ask, is_so):
    """Ask the store again and again: time passes there, and nothing announces it."""
    async with asyncio.timeout(PATIENT_S):
        while not is_so(await ask()):  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.01)


def rate(returned=0.0, needed=0.0, wanted=0.0, per_minute=0.6, most=10.0):
    return RateAsk(key="t:requests", per_minute=per_minute, most=most, returned=returned, needed=needed, wanted=wanted)


def permits(using, wanted, most=4, key="t"):
    return PermitAsk(key=key, most=most, using=using, wanted=wanted)


async def test_who_is_announced_is_there_until_it_leaves_or_says_nothing(stores):
    a, b, c = stores
    assert await a.announce(b"1", 60) == {"a": b"1"}
    assert await b.announce(b"2", 60) == {"a": b"1", "b": b"2"}
    assert await a.announce(b"3", 60) == {"a": b"3", "b": b"2"}
    await c.announce(b"4", 0.001)
    await b.leave()
    await until(lambda: a.announce(b"5", 60), lambda there: there == {"a": b"5"})


async def test_slices_of_all_gateways_together_are_no_more_than_the_bucket(stores):
    grants = [(await store.draw([rate(needed=1, wanted=4)]))[0] for store in stores]
    assert [round(one.amount) for one in grants] == [4, 4, 2]
    (nothing,) = await stores[0].draw([rate(needed=1, wanted=4)])
    assert nothing.amount == 0
    assert 0 < nothing.wait_s <= 100
    await stores[1].draw([rate(returned=3)])
    assert round((await stores[2].draw([rate(needed=1, wanted=9)]))[0].amount) == 3


async def test_a_debt_is_paid_before_anything_is_given(stores):
    await stores[0].draw([rate(returned=-19, per_minute=60)])
    (nothing,) = await stores[1].draw([rate(needed=1, wanted=5, per_minute=60)])
    assert nothing.amount == 0
    assert 5 < nothing.wait_s <= 10
    assert (await stores[0].draw([rate(returned=100)]))[0].amount == 0
    assert (await stores[1].draw([rate(needed=1, wanted=50)]))[0].amount <= 10, "no more than it holds"


async def test_a_bucket_fills_with_time(stores):
    fast = {"per_minute": 60_000.0, "most": 10.0}
    await stores[0].draw([rate(wanted=10, **fast)])
    await until(lambda: stores[1].draw([rate(needed=9, wanted=9, **fast)]), lambda grants: grants[0].amount > 0)


async def test_permits_of_all_gateways_together_are_no_more_than_the_limit(stores):
    a, b, c = stores
    for store in stores:
        await store.announce(b"", 60)
    assert await a.hold([permits(0, 3)]) == [3]
    assert await b.hold([permits(0, 3), permits(0, 3, key="u")]) == [1, 3]
    assert await c.hold([permits(0, 1)]) == [0]
    assert await c.hold([permits(2, 5)]) == [2], "what is open is, whatever was allowed"
    assert await a.hold([permits(1, 1)]) == [1]
    assert await b.hold([permits(1, 3)]) == [1]
    await c.leave()
    assert await b.hold([permits(1, 3)]) == [3], "those of a gateway that is gone are void"


async def test_permits_of_a_killed_gateway_expire(stores):
    a, b, _ = stores
    await b.announce(b"", 60)
    await a.announce(b"", 0.2)
    await a.hold([permits(4, 4)])
    await until(lambda: b.hold([permits(0, 4)]), lambda held: held == [4])


async def test_what_is_published_is_read_in_order_by_all(stores):
    a, b, c = stores
    positions = [await store.publish("acts", name) for store, name in ((a, b"1"), (b, b"2"), (a, b"3"))]
    assert positions == sorted(positions, key=order_of)
    entries = await c.read("acts", FIRST, 10)
    assert [(one.by, one.payload) for one in entries] == [("a", b"1"), ("b", b"2"), ("a", b"3")]
    assert [one.position for one in entries] == positions
    assert [one.payload for one in await c.read("acts", positions[0], 1)] == [b"2"]
    assert await c.read("content", FIRST, 10) == []
    await b.clear("acts")
    assert await c.read("acts", FIRST, 10) == []
    later = await a.publish("acts", b"4")
    assert order_of(later) > order_of(positions[-1])
    assert [one.payload for one in await c.read("acts", positions[-1], 10)] == [b"4"]


async def test_a_topic_is_bounded(stores, monkeypatch):
    from chiasm.sharing import local, redis

    monkeypatch.setattr(redis, "MAX_ENTRIES", 3)
    monkeypatch.setattr(local, "MAX_ENTRIES", 3)
    for number in range(5):
        await stores[0].publish("content", str(number).encode())
    assert [one.payload for one in await stores[1].read("content", FIRST, 10)] == [b"2", b"3", b"4"]


async def test_a_topic_is_bounded_in_bytes_too_but_keeps_the_newest(stores, monkeypatch):
    from chiasm.sharing import local, redis

    monkeypatch.setattr(redis, "MAX_TOPIC_BYTES", 100)
    monkeypatch.setattr(local, "MAX_TOPIC_BYTES", 100)
    for size in (40, 41, 42, 50):
        await stores[0].publish("content", size * b"x")
    assert [len(one.payload) for one in await stores[1].read("content", FIRST, 10)] == [42, 50]
    await stores[0].publish("content", 200 * b"x")
    assert [len(one.payload) for one in await stores[1].read("content", FIRST, 10)] == [200]
    await stores[0].clear("content")
    await stores[0].publish("content", 99 * b"x")
    await stores[0].publish("content", b"y")
    assert [len(one.payload) for one in await stores[1].read("content", FIRST, 10)] == [99, 1], "counted anew"


async def test_a_topic_whose_entries_the_server_dropped_to_save_memory_fills_again(redis, monkeypatch):
    from chiasm.sharing import redis as module

    monkeypatch.setattr(module, "MAX_TOPIC_BYTES", 100)
    store = RedisStore("a", redis.url, timeout_s=PATIENT_S)
    await store._redis.flushall()
    await store.publish("content", 90 * b"x")
    await store._redis.delete("{chiasm}:topic:content")
    for _ in range(3):
        await store.publish("content", 40 * b"y")
    assert len(await store.read("content", FIRST, 10)) == 2
    await store.aclose()


async def test_a_server_that_is_not_there_is_a_connection_error(tmp_path):
    from tests.redis_server import free_port

    store = RedisStore("a", f"redis://127.0.0.1:{free_port()}/0")
    for call in (store.announce(b"", 1), store.draw([rate()]), store.hold([permits(0, 1)]), store.read("t", FIRST, 1)):
        with pytest.raises(ConnectionError):
            await call
    await store.aclose()


async def test_a_password_comes_from_a_file_and_is_in_no_message(tmp_path):
    (tmp_path / "password").write_text("hush\n")
    with redis_server(tmp_path, "hush") as server:
        stranger = make_store(GatewaySettings(store=server.url, store_password="hash"))
        with pytest.raises(ConnectionError) as caught:
            await stranger.announce(b"", 60)
        assert "hash" not in str(caught.value)
        known = make_store(GatewaySettings(store=server.url, store_password_file=str(tmp_path / "password")))
        assert known.name in await known.announce(b"", 60)
        for store in (stranger, known):
            assert store.is_shared
            await store.aclose()


async def does_everything(store):
    """Call all that a gateway calls; what is refused raises."""
    await store.announce(b"", 60)
    await store.draw([rate()])
    await store.hold([permits(1, 1)])
    position = await store.publish("acts", b"1")
    assert [one.position for one in await store.read("acts", FIRST, 10)] == [position]
    await store.clear("acts")
    await store.leave()
    await store.aclose()


@pytest.mark.parametrize("kind", ["redis", "valkey"])
async def test_a_user_of_the_access_list_with_no_more_than_the_guides_rights_is_enough(tmp_path, kind):
    (tmp_path / "password").write_text("hush\n")
    with redis_server(tmp_path, "other", kind=kind, rules=f"fleet on >hush {RULES}") as server:
        settings = {"store": server.url, "store_user": "fleet"}
        await does_everything(make_store(GatewaySettings(**settings, store_password_file=str(tmp_path / "password"))))
        for wrong in ({"store_user": "fleet", "store_password": "other"}, {"store_password": "hush"}):
            stranger = make_store(GatewaySettings(store=server.url, **wrong))
            with pytest.raises(ConnectionError):
                await stranger.announce(b"", 60)
            await stranger.aclose()


async def test_a_user_of_the_access_list_needs_a_password():
    with pytest.raises(InvalidSettingError, match="store_user has no password"):
        make_store(GatewaySettings(store="redis://host", store_user="fleet"))


async def test_a_store_is_reached_over_tls_only_with_a_certificate_that_is_trusted(tmp_path):
    with redis_server(tmp_path, "hush") as server, tls_front(tmp_path, server.port) as (port, trusted):
        url = f"rediss://127.0.0.1:{port}/0"
        await does_everything(make_store(GatewaySettings(store=f"{url}?ssl_ca_certs={trusted}", store_password="hush")))
        stranger = make_store(GatewaySettings(store=url, store_password="hush"))
        with pytest.raises(ConnectionError):
            await stranger.announce(b"", 60)
        await stranger.aclose()


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:hush@host/0",
        "redis://:hush@host",
        "redis://host/0?password=hush",
        "redis://host/0?decode_responses=true",
        "redis://host/0?max_connections=x",
        "redis://host/0?ssl_ca_certs=/ca.pem",
        "redis://host/fleet",
        "redis://host/0#1",
        "http://host",
        "redis://",
        "host:1",
    ],
)
def test_an_address_is_checked_and_carries_no_password(url):
    with pytest.raises(InvalidSettingError) as caught:
        make_store(GatewaySettings(store=url))
    assert "hush" not in str(caught.value)
    assert not make_store(GatewaySettings()).is_shared
    assert make_store(GatewaySettings(store="rediss://host:1/2?ssl_ca_certs=/ca.pem")).is_shared
