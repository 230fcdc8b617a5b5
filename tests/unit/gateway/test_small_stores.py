"""Receipts and aliases: bounded, and true to their keys."""

import pytest

from chiasm.errors import InvalidRequestError
from chiasm.gateway.aliases import MediaAliases
from chiasm.gateway.cache_scopes import CacheScopes
from chiasm.gateway.receipts import ReceiptRing
from chiasm.gateway.retention import retention_of
from chiasm.observability.receipt import Receipt
from chiasm.settings import GatewaySettings, MediaSettings, Settings
from chiasm.tenancy.keys import ANONYMOUS


def receipt(name):
    return Receipt(
        request_id=name, model="m", outcome="finished", ttft_s=0, e2e_s=0, stages_s={}, unaccounted_s=0, decode_s=0
    )


def test_the_ring_keeps_the_newest():
    ring = ReceiptRing(3)
    for name in "abcde":
        ring.add(receipt(name))
    assert ring.get("b") is None
    assert ring.get("c").request_id == "c"
    assert [kept.request_id for kept in ring.latest(10)] == ["e", "d", "c"]
    assert [kept.request_id for kept in ring.latest(1)] == ["e"]


def test_receipts_end_by_time_and_belong_to_a_tenant():
    now = [0.0]
    ring = ReceiptRing(10, 60.0, lambda: now[0])
    for name, tenant in (("a", "t1"), ("b", "t2"), ("c", "t1")):
        ring.add(receipt(name), tenant)
        now[0] += 10
    assert [one.request_id for one in ring.latest(10, "t1")] == ["c", "a"]
    assert ring.get("b", "t1") is None
    assert ring.get("b", "t2").request_id == "b"
    assert [(tenant, one.request_id) for tenant, one in ring.latest_with_tenants(2)] == [("t1", "c"), ("t2", "b")]
    now[0] = 65.0
    assert [one.request_id for one in ring.latest(10)] == ["c", "b"]
    assert (ring.forget_tenant("t1"), ring.forget_tenant("t1"), len(ring)) == (1, 0, 1)
    now[0] = 70.0
    assert ring.get("b") is None


def test_an_alias_keeps_meaning_the_same_bytes():
    aliases = MediaAliases()
    aliases.bind("t1", "logo", "aa", "/p")
    aliases.bind("t1", "logo", "aa", "/p")
    aliases.bind("t2", "logo", "bb", "/p")
    with pytest.raises(InvalidRequestError) as caught:
        aliases.bind("t1", "logo", "bb", "/messages/0/content/0/uuid")
    assert caught.value.param == "/messages/0/content/0/uuid"
    aliases.bind("t1", "logo", "aa", "/p")


def test_each_key_has_a_scope_of_its_own_unless_scopes_are_shared():
    own = CacheScopes(GatewaySettings(api_keys=("a", "b")))
    assert len({own.salt_of("0123"), own.salt_of("4567"), ""}) == 3
    assert own.salt_of(ANONYMOUS) == ""
    shared = CacheScopes(GatewaySettings(api_keys=("a", "b"), cache_scope="shared"))
    assert {shared.salt_of("0123"), shared.salt_of("4567"), shared.salt_of(ANONYMOUS)} == {""}


def test_the_names_longest_unused_are_forgotten():
    aliases = MediaAliases(2)
    for name in ("a", "b", "a", "c"):
        aliases.bind("t", name, "00", "/p")
    aliases.bind("t", "b", "11", "/p")
    with pytest.raises(InvalidRequestError):
        aliases.bind("t", "c", "11", "/p")


def test_kept_downloads_are_listed_where_there_may_be_some():
    off, on = Settings(), Settings(media=MediaSettings(fetch_cache="revalidate", fetch_cache_ttl_s=60.0))
    assert "downloads" not in {one.what for one in retention_of(off)}
    [downloads] = [one for one in retention_of(on) if one.what == "downloads"]
    assert (downloads.lifetime_s, len(downloads.deleted_by)) == (60.0, 2)
