"""Kept downloads against a real server: confirmed by it or immutable, of one tenant, bounded, never past the policy."""

import asyncio

import pytest

from chiasm.errors import MediaFetchError, MediaRefusedError, MediaTooLargeError, UnsupportedMediaError
from chiasm.media.fetch.cache import Download, FetchCache
from chiasm.media.fetch.policy import HttpUrl
from chiasm.media.identity import content_identity
from chiasm.media.ingest import MediaIngest, MediaReference
from chiasm.settings import MediaSettings
from tests.faults.loopback import Loopback
from tests.unit.media.pictures import encode, gradient, noise

FIRST, SECOND = encode(gradient(), "png"), encode(noise(30, 20), "png")
HOST = "img.example"
IMMUTABLE = "public, max-age=600, immutable"


class Origin:
    """Answers as a server of files does: by its version, and 304 to who has that."""

    def __init__(self, server):
        self.server = server
        self.body, self.tag, self.rule = FIRST, '"v1"', "max-age=600"
        self.headers = ()
        self.confirmed_tag = None
        server.behaviours["/a.png"] = self.serve

    async def serve(self, server, reader, writer):
        asked = dict(line.split(": ", 1) for line in server.requests[-1].strip().splitlines()[1:])
        lines = [f"Cache-Control: {self.rule}", *self.headers]
        lines += [f"ETag: {self.tag}"] if self.tag else []
        if self.tag and asked.get("If-None-Match") == self.tag:
            lines[-1] = f"ETag: {self.confirmed_tag or self.tag}"
            await server.send(writer, "\r\n".join(["HTTP/1.1 304 Not Modified", *lines, "", ""]).encode())
            return
        lines += [f"Content-Length: {len(self.body)}", "Content-Type: image/png"]
        await server.send(writer, "\r\n".join(["HTTP/1.1 200 OK", *lines, "", ""]).encode() + self.body)

    @property
    def num_requests(self):
        return len(self.server.requests)


@pytest.fixture
async def origin():
    async with Loopback() as server:
        yield Origin(server)


@pytest.fixture
async def start(origin):
    opened = []

    def start(addresses=("127.0.0.1",), **options):
        settings = MediaSettings(
            **{
                "allowed_domains": (HOST,),
                "allowed_private_hosts": (HOST,),
                "allow_http": True,
                "allowed_ports": (origin.server.port,),
                "fetch_cache": "immutable",
                **options,
            }
        )
        opened.append(MediaIngest(settings, None, lookup=lambda host, port: list(addresses)))
        return opened[-1]

    yield start
    for ingest in opened:
        await ingest.aclose()


async def fetched(ingest, origin, tenant="one", path="/a.png"):
    url = origin.server.url(path, HOST)
    [item] = await ingest.collect([MediaReference("image", url, "/0")], 30, tenant=tenant)
    return item.source.data


async def test_it_is_off_by_default(start, origin):
    origin.rule = IMMUTABLE
    ingest = start(fetch_cache="off")
    assert [await fetched(ingest, origin) for _ in range(2)] == [FIRST, FIRST]
    assert origin.num_requests == 2
    assert "If-None-Match" not in origin.server.requests[1]


async def test_the_server_is_asked_each_time_and_sends_nothing_twice(start, origin):
    ingest = start(fetch_cache="revalidate")
    origin.rule = IMMUTABLE
    assert [await fetched(ingest, origin) for _ in range(3)] == [FIRST] * 3
    assert origin.num_requests == 3
    assert 'If-None-Match: "v1"' in origin.server.requests[2]
    assert len(FIRST) < origin.server.num_bytes_sent < 2 * len(FIRST) + 400
    origin.body, origin.tag = SECOND, '"v2"'
    assert [await fetched(ingest, origin) for _ in range(2)] == [SECOND] * 2
    assert 'If-None-Match: "v2"' in origin.server.requests[4]


@pytest.mark.parametrize(
    ("rule", "headers", "num_requests"),
    [
        (IMMUTABLE, (), 1),
        ("max-age=600", (), 2),
        ("immutable", (), 2),
        (IMMUTABLE + ", no-cache", (), 2),
        (IMMUTABLE, ("Age: 600",), 2),
        (IMMUTABLE, ("Age: 599",), 1),
        ("max-age=-5, immutable", (), 2),
    ],
)
async def test_only_what_is_immutable_and_young_is_not_asked_for(start, origin, rule, headers, num_requests):
    origin.rule, origin.headers = rule, headers
    ingest = start()
    assert [await fetched(ingest, origin) for _ in range(2)] == [FIRST, FIRST]
    assert origin.num_requests == num_requests


async def test_past_its_age_an_immutable_answer_is_asked_for_again(start, origin):
    origin.rule = "max-age=1, immutable"
    ingest = start()
    assert [await fetched(ingest, origin) for _ in range(2)] == [FIRST, FIRST]
    assert origin.num_requests == 1
    await asyncio.sleep(1.1)
    assert await fetched(ingest, origin) == FIRST
    assert origin.num_requests == 2
    assert 'If-None-Match: "v1"' in origin.server.requests[1]


@pytest.mark.parametrize(
    ("tag", "rule", "headers"),
    [
        (None, IMMUTABLE, ()),
        ('W/"v1"', IMMUTABLE, ()),
        ("v1", IMMUTABLE, ()),
        ('"v1"', IMMUTABLE + ", no-store", ()),
        ('"v1"', IMMUTABLE + ", private", ()),
        ('"v1"', IMMUTABLE, ("Vary: *",)),
        ('"v1"', IMMUTABLE, ("Cache-Control: no-store",)),  # a second line of the same header
        ('"v1"', IMMUTABLE, ("Vary: Accept", "Vary: *")),
    ],
)
async def test_what_has_no_strong_validator_or_may_not_be_kept_is_not(start, origin, tag, rule, headers):
    origin.tag, origin.rule, origin.headers = tag, rule, headers
    ingest = start()
    assert await fetched(ingest, origin) == FIRST
    origin.body = SECOND
    assert await fetched(ingest, origin) == SECOND
    assert "If-None-Match" not in origin.server.requests[1]


async def test_tenants_share_nothing(start, origin):
    origin.rule = IMMUTABLE
    ingest = start()
    assert await fetched(ingest, origin, "one") == FIRST
    origin.body, origin.tag = SECOND, '"v2"'
    assert await fetched(ingest, origin, "two") == SECOND
    assert "If-None-Match" not in origin.server.requests[1]
    assert [await fetched(ingest, origin, tenant) for tenant in ("one", "two")] == [FIRST, SECOND]
    assert origin.num_requests == 2


async def test_a_query_is_part_of_the_place(start, origin):
    origin.rule = IMMUTABLE
    ingest = start()
    await fetched(ingest, origin)
    await fetched(ingest, origin, path="/a.png?size=2")
    assert origin.num_requests == 2


async def test_an_address_that_is_refused_now_is_not_served_from_what_was_kept(start, origin):
    origin.rule, addresses = IMMUTABLE, ["127.0.0.1"]
    ingest = start(addresses)
    assert await fetched(ingest, origin) == FIRST
    addresses[:] = ["169.254.169.254"]
    with pytest.raises(MediaRefusedError, match="not at a public address"):
        await fetched(ingest, origin)
    assert origin.num_requests == 1


async def test_limits_of_the_request_hold_for_what_was_kept(start, origin):
    origin.rule = IMMUTABLE
    ingest = start()
    await fetched(ingest, origin)
    ingest._fetcher._settings = MediaSettings(max_item_bytes=len(FIRST) - 1)
    with pytest.raises(MediaTooLargeError, match="the limit is"):
        await fetched(ingest, origin)


async def test_a_server_that_confirms_another_version_is_not_believed(start, origin):
    ingest = start()
    await fetched(ingest, origin)
    origin.confirmed_tag = '"v2"'
    with pytest.raises(MediaFetchError, match="another version"):
        await fetched(ingest, origin)


async def test_a_confirmation_that_nobody_asked_for_is_refused(start, origin):
    async def unasked(server, reader, writer):
        await server.send(writer, b"HTTP/1.1 304 Not Modified\r\n\r\n")

    origin.server.behaviours["/b.png"] = unasked
    with pytest.raises(MediaRefusedError, match="redirect \\(304\\)"):
        await fetched(start(), origin, path="/b.png")


async def test_where_a_redirect_leads_is_not_kept(start, origin):
    async def elsewhere(server, reader, writer):
        await server.send(writer, b"HTTP/1.1 302 Found\r\nLocation: /a.png\r\nContent-Length: 0\r\n\r\n")

    origin.rule, origin.server.behaviours["/b.png"] = IMMUTABLE, elsewhere
    ingest = start(max_redirects=1)
    assert [await fetched(ingest, origin, path="/b.png") for _ in range(2)] == [FIRST, FIRST]
    assert origin.num_requests == 4
    assert ingest.fetch_lookups["miss"] == 2


async def test_bytes_and_entries_are_bounded_and_the_longest_unused_goes(start, origin):
    origin.rule = IMMUTABLE
    ingest = start(fetch_cache_entries=2)
    cache = ingest._fetcher._cache
    for query in "ab":
        await fetched(ingest, origin, path=f"/a.png?{query}")
    await fetched(ingest, origin, path="/a.png?a")
    await fetched(ingest, origin, path="/a.png?c")
    assert (len(cache), cache.num_bytes, origin.num_requests) == (2, 2 * len(FIRST), 3)
    await fetched(ingest, origin, path="/a.png?a")
    assert origin.num_requests == 3
    await fetched(ingest, origin, path="/a.png?b")
    assert origin.num_requests == 4

    small = start(fetch_cache_bytes=len(FIRST) - 1)
    assert [await fetched(small, origin) for _ in range(2)] == [FIRST, FIRST]
    assert (len(small._fetcher._cache), small._fetcher._cache.num_bytes) == (0, 0)


async def test_a_kept_download_goes_after_its_time(start, origin):
    origin.rule = IMMUTABLE
    ingest = start(fetch_cache_ttl_s=0.2)
    await fetched(ingest, origin)
    await asyncio.sleep(0.25)
    await fetched(ingest, origin)
    assert "If-None-Match" not in origin.server.requests[1]


def test_what_is_too_old_leaves_memory_also_when_nobody_asks_for_it_again():
    cache = FetchCache(MediaSettings(fetch_cache="immutable", fetch_cache_ttl_s=10))
    first, second, third = (HttpUrl("https", HOST, 443, f"/{name}") for name in "abc")
    download, headers = Download(FIRST, content_identity(FIRST), "image/png"), {"ETag": '"v1"'}
    cache.keep("one", first, download, headers, now_s=0.0)
    cache.keep("one", second, download, headers, now_s=5.0)
    assert cache.find("two", third, now_s=9.0) is None
    assert cache.num_bytes == 2 * len(FIRST)
    assert cache.find("two", third, now_s=10.0) is None
    assert cache.num_bytes == len(FIRST)
    cache.keep("one", third, download, headers, now_s=15.0)
    assert (len(cache), cache.num_bytes) == (1, len(FIRST))
    cache.expire(25.0)
    assert (len(cache), cache.num_bytes) == (0, 0)


async def test_a_confirmation_may_say_that_it_was_the_last_one(start, origin):
    ingest = start(fetch_cache="revalidate")
    await fetched(ingest, origin)
    origin.rule = "no-store"
    assert await fetched(ingest, origin) == FIRST
    assert ingest.kept_bytes == 0
    await fetched(ingest, origin)
    assert ["If-None-Match" in one for one in origin.server.requests] == [False, True, False]


async def test_deleting_reaches_what_no_item_was_made_of_yet(start, origin):
    origin.rule, origin.body = IMMUTABLE, b"no picture"
    ingest = start()
    with pytest.raises(UnsupportedMediaError):
        await fetched(ingest, origin)
    assert ingest.kept_bytes
    ingest.forget(identity="0" * 64)
    assert ingest.kept_bytes == 0


@pytest.mark.parametrize("deletion", [{"tenant": "one"}, {"identity": "0" * 64}])
async def test_what_is_deleted_while_it_is_fetched_is_not_kept(start, origin, deletion):
    ingest, serve = start(), origin.serve

    async def deleting(server, reader, writer):
        ingest.forget(**deletion)
        await serve(server, reader, writer)

    origin.rule, origin.server.behaviours["/a.png"] = IMMUTABLE, deleting
    assert await fetched(ingest, origin) == FIRST
    assert ingest.kept_bytes == 0


async def test_deleting_a_medium_or_a_tenant_deletes_what_was_kept(start, origin):
    origin.rule = IMMUTABLE
    ingest = start()
    reference = MediaReference("image", origin.server.url("/a.png", HOST), "/0")
    for tenant in ("one", "two"):
        [item] = await ingest.collect([reference], 30, tenant=tenant)
    assert ingest.kept_bytes == 2 * len(FIRST)
    assert ingest.forget(tenant="one") == 1
    assert ingest.forget(identity="0" * 64) == 0
    assert ingest.forget(identity=item.identity) == 1
    assert (len(ingest._fetcher._cache), ingest.kept_bytes) == (0, 0)
    assert start(fetch_cache="off").kept_bytes == 0
    assert start(fetch_cache="off").forget(identity=item.identity) == 0


async def test_what_came_of_each_download_is_counted(start, origin):
    ingest = start(fetch_cache="immutable")
    await fetched(ingest, origin)
    await fetched(ingest, origin)
    origin.body, origin.tag, origin.rule = SECOND, '"v2"', IMMUTABLE
    for _ in range(3):
        await fetched(ingest, origin)
    assert ingest.fetch_lookups == {"miss": 1, "revalidated": 1, "changed": 1, "hit": 2}
    off = start(fetch_cache="off")
    await fetched(off, origin)
    assert off.fetch_lookups == {"miss": 0, "revalidated": 0, "changed": 0, "hit": 0}


async def test_failed_downloads_are_no_lookups_that_gave_anything(start, origin):
    ingest = start()
    await fetched(ingest, origin)
    origin.confirmed_tag = '"other"'
    with pytest.raises(MediaFetchError):
        await fetched(ingest, origin)
    assert ingest.fetch_lookups == {"miss": 1, "revalidated": 0, "changed": 0, "hit": 0}
