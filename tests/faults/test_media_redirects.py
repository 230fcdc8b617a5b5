"""Redirects, where some are allowed: every hop is judged like a URL of its own; canaries count connections."""

import pytest

from chiasm.errors import MediaError, MediaFetchError, MediaRefusedError, MediaTooLargeError
from chiasm.media.ingest import MediaIngest, MediaReference
from chiasm.settings import MediaSettings
from tests.faults.loopback import Loopback, answer, drip, endless, hang, redirect, slow
from tests.unit.media.pictures import encode, gradient

PICTURE = encode(gradient(), "png")
HOST = "img.example"
"""At loopback, as the operator expects it. Whatever else is at loopback is an inner service."""


@pytest.fixture
async def server():
    async with Loopback() as server:
        server.behaviours["/picture"] = answer(PICTURE)
        yield server


@pytest.fixture
async def canary():
    async with Loopback() as canary:
        canary.behaviours["/"] = answer(PICTURE)
        yield canary


@pytest.fixture
async def collect(server, canary):
    opened = []

    async def collect(path="/start?sig=secret", lookup=lambda host, port: ["127.0.0.1"], **options):
        options = {
            "allowed_domains": (HOST, "inner.example", "127.0.0.1"),
            "allowed_private_hosts": (HOST,),
            "allow_http": True,
            "allowed_ports": (server.port,),
            "fetch_timeout_s": 20.0,
            "max_redirects": 10,
            **options,
        }
        ingest = MediaIngest(MediaSettings(**options), None, lookup=lookup)
        opened.append(ingest)
        [item] = await ingest.collect([MediaReference("image", server.url(path, HOST), "/0")], 30)
        return item.source.data

    yield collect
    for ingest in opened:
        await ingest.aclose()


def asked(server):
    return [head.split()[1] for head in server.requests]


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
async def test_allowed_redirects_arrive(server, collect, status):
    server.behaviours["/start"] = redirect(server.url("/picture?sig=%2B/", HOST), status)
    assert await collect() == PICTURE
    assert asked(server) == ["/start?sig=secret", "/picture?sig=%2B/"]
    assert not any("Referer" in head or "secret" in head for head in server.requests[1:])


@pytest.mark.parametrize(
    ("location", "wanted"),
    [
        ("/picture", "/picture"),
        ("picture?a=1", "/folder/picture?a=1"),
        ("../picture", "/picture"),
        ("?page=2", "/folder/start?page=2"),
        (f"//{HOST}:{{port}}/picture", "/picture"),
    ],
)
async def test_relative_redirects(server, collect, location, wanted):
    steps = iter([redirect(location.format(port=server.port)), answer(PICTURE)])

    async def next_step(*arguments):
        await next(steps)(*arguments)

    server.behaviours = dict.fromkeys(["/folder/start", "/folder/picture", "/picture"], next_step)
    assert await collect("/folder/start") == PICTURE
    assert asked(server)[1:] == [wanted]


async def test_none_are_followed_by_default(server, collect):
    server.behaviours["/start"] = redirect("/picture")
    with pytest.raises(MediaRefusedError, match=r"redirect \(302\), which is not followed"):
        await collect(max_redirects=MediaSettings().max_redirects)
    assert len(server.requests) == 1


@pytest.mark.parametrize(("allowed", "is_accepted"), [(10, False), (11, True)])
async def test_a_chain_of_eleven(server, collect, allowed, is_accepted):
    server.behaviours |= {f"/{i}": redirect(f"/{i + 1}" if i < 10 else "/picture", "307 Temporary") for i in range(11)}
    if is_accepted:
        assert await collect("/0", max_redirects=allowed) == PICTURE
    else:
        with pytest.raises(MediaRefusedError, match="redirects more than 10 times"):
            await collect("/0", max_redirects=allowed)
    assert len(server.requests) == allowed + 1


async def test_a_circle_ends(server, collect):
    server.behaviours["/start"] = redirect("/start")
    with pytest.raises(MediaRefusedError, match="redirects more than 3 times"):
        await collect(max_redirects=3)
    assert len(server.requests) == 4


FORBIDDEN = [
    "http://127.0.0.1:{port}/",  # the address itself is not expected at loopback
    "http://127.1:{port}/",
    "http://2130706433:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/",
    "http://inner.example:{port}/",  # resolves to loopback, where it is not expected
    "http://localhost:{port}/",
    "http://other.example:{port}/",
    "http://user@img.example:{port}/",
    "http://user:word@img.example:{port}/",
    "http://img.example:{port}/#part",
    "http://img.example:{port}/#",
    "/picture#part",
    "//127.0.0.1:{port}/",
    "\\\\127.0.0.1:{port}/",
    "http:\\\\127.0.0.1:{port}/",
    "/pic\tture",
    "/with space",
    "/\N{LATIN SMALL LETTER E WITH ACUTE}",
    "http://[::1/",
    "file:///etc/passwd",
    "data:image/png;base64,AAAA",
    "gopher://127.0.0.1:{port}/",
    "javascript:alert(1)",
    "http://169.254.169.254/latest/meta-data/",
    "http://img.example:1/",
]


@pytest.mark.parametrize("location", FORBIDDEN, ids=lambda location: location[:40])
async def test_forbidden_places_are_refused_before_they_are_dialled(server, canary, collect, location):
    server.behaviours["/start"] = redirect(location.format(port=canary.port))
    with pytest.raises(MediaRefusedError) as caught:
        await collect(allowed_ports=(server.port, canary.port, 80))
    assert caught.value.message == f"Media item 0: http://{HOST}:{server.port} redirects to where policy forbids to go"
    assert str(canary.port) not in str(caught.value.hint)
    assert canary.num_connections == 0
    assert len(server.requests) == 1  # and nothing is tried again


async def test_another_port_is_refused_unless_listed(server, canary, collect):
    server.behaviours["/start"] = redirect(canary.url("/", HOST))
    with pytest.raises(MediaRefusedError, match="policy forbids"):
        await collect()
    assert canary.num_connections == 0
    assert await collect(allowed_ports=(server.port, canary.port)) == PICTURE


async def test_every_hop_is_resolved_anew(server, canary, collect):
    """A name that moves inwards between two hops is caught, whatever it was the first time."""
    server.behaviours["/start"] = redirect(canary.url("/", HOST))
    answers = [["127.0.0.1"], ["169.254.169.254"]]
    with pytest.raises(MediaRefusedError, match="policy forbids"):
        await collect(lookup=lambda host, port: answers.pop(0), allowed_ports=(server.port, canary.port))
    assert answers == []
    assert canary.num_connections == 0


async def test_open_and_closed_inner_ports_look_alike(server, canary, collect):
    messages = []
    for port in (canary.port, 1):
        server.behaviours["/start"] = redirect(f"http://inner.example:{port}/")
        with pytest.raises(MediaRefusedError) as caught:
            await collect(allowed_ports=(server.port, canary.port, 1))
        messages.append((caught.value.message, caught.value.hint))
    assert messages[0] == messages[1]
    assert canary.num_connections == 0


async def test_the_deadline_spans_all_hops(server, collect):
    server.behaviours |= {f"/{i}": slow(redirect(f"/{i + 1}"), 0.2) for i in range(10)}
    with pytest.raises(MediaFetchError, match=r"did not deliver within 0\.5 s"):
        await collect("/0", fetch_timeout_s=0.5)
    assert len(server.requests) <= 4


@pytest.mark.parametrize(
    ("last", "error", "cause"),
    [
        (answer(b"", "404 Not Found"), MediaFetchError, "redirected 1x, answered with status 404"),
        (answer(b"", "304 Not Modified"), MediaRefusedError, r"redirect \(304\), which is not followed"),
        (answer(b"", "302 Found"), MediaFetchError, "a redirect to nowhere"),
        (redirect(""), MediaFetchError, "a redirect to nowhere"),
        (hang, MediaFetchError, "did not deliver"),
        (drip(PICTURE, 0.05), MediaFetchError, "did not deliver"),
        (endless(PICTURE), MediaTooLargeError, "limit is 200000"),
        (answer(b"<html>", "200 OK"), MediaError, "HTML"),
    ],
)
async def test_the_last_hop_is_held_to_the_same_rules(server, collect, last, error, cause):
    server.behaviours |= {"/start": redirect("/last?sig=secret"), "/last": last}
    with pytest.raises(error, match=cause) as caught:
        await collect(max_item_bytes=200_000, fetch_timeout_s=1.0 if "deliver" in cause else 20.0)
    assert "secret" not in caught.value.message


async def test_the_body_of_a_redirect_is_not_read(server, collect):
    async def endless_redirect(server, reader, writer):
        await server.send(writer, b"HTTP/1.1 302 Found\r\nLocation: /picture\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await server.send(writer, b"10000\r\n" + bytes(65536) + b"\r\n")

    server.behaviours["/start"] = endless_redirect
    assert await collect() == PICTURE
    assert server.num_bytes_sent < 20_000_000
