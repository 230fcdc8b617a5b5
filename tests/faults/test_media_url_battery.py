"""Every way to spell an inner address, asked for directly and as a redirect: refused alike, and nothing is dialled."""

import ipaddress
import time

import pytest

from chiasm.errors import MediaError
from chiasm.media.ingest import MediaIngest, MediaReference
from chiasm.settings import MediaSettings
from tests.faults.loopback import Loopback, answer, redirect
from tests.unit.media.pictures import encode, gradient

HOST = "img.example"
INNER = [
    "127.0.0.1",
    "127.1.2.3",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.0.1",
    "100.64.0.1",
    "169.254.169.254",
    "168.63.129.16",
    "0.0.0.0",
    "255.255.255.255",
]
SIX = ["::1", "::", "fe80::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "2001::1", "100::1"]
NAMES = ["localhost", "inner.example", "metadata.google.internal", "127.0.0.1.inner.example", "xn--9ca.example"]
AROUND = [
    "http://user@{host}:{port}/",
    "http://user:word@{host}:{port}/",
    "http://img.example@{host}:{port}/",
    "http://{host}:{port}/#img.example",
    "http://{host}:{port}\\@img.example/",
    "http://img.example\\@{host}:{port}/",
    "http://{host}:{port}/ a",
    "http://{host}%2f:{port}/",
    "http://{host}%00:{port}/",
    "http:/{host}:{port}/",
    "http:{host}:{port}/",
    "http:///{host}:{port}/",
    "\thttp://{host}:{port}/",
    "HTTP://{host}:{port}/",
]
SCHEMES = ["ftp", "ftps", "gopher", "dict", "ldap", "tftp", "sftp", "jar", "ws", "wss", "unix", "blob", "about", "smb"]
FOREIGN = [
    "http://\uff11\uff12\uff17.0.0.1:{port}/",  # full-width digits
    "http://127\u30020\u30020\u30021:{port}/",  # ideographic full stops
    "http://\u2460\u2461\u2466.0.0.1:{port}/",  # circled digits
    "http://loc\u00adalhost:{port}/",  # a soft hyphen
    "http://\u212aocalhost:{port}/",  # the sign of kelvin
    "//127.0.0.1:{port}/",
    "127.0.0.1:{port}/",
    "javascript:fetch('http://127.0.0.1:{port}/')",
    "file://127.0.0.1/etc/passwd",
    "file:///etc/passwd",
    "file:///proc/self/environ",
    "file:///dev/zero",
    "file://localhost/etc/passwd",
    "file:/etc/passwd",
    "view-source:http://127.0.0.1:{port}/",
    "http://[::1:{port}/",
    "http://::1:{port}/",
    "http://[127.0.0.1]:{port}/",
    "http://[::1%25lo]:{port}/",
    "http://[::1%lo]:{port}/",
    "http://[v1.x]:{port}/",
]


def spellings(address):
    """One IPv4 address as resolvers and browsers have been known to read it."""
    number = int(ipaddress.IPv4Address(address))
    a, b, c, d = address.split(".")
    yield from (address, f"{address}.", str(number), hex(number), f"0{number:o}", f"{a}.{number & 0xFFFFFF}")
    yield f"{a}.{b}.{number & 0xFFFF}"
    yield ".".join(f"0{int(part):03o}" for part in (a, b, c, d))
    yield ".".join(hex(int(part)) for part in (a, b, c, d))
    high, low = number >> 16, number & 0xFFFF
    for prefix in ("::ffff:", "::", "64:ff9b::", "2002:"):
        yield f"[2002:{high:x}:{low:x}::]" if prefix == "2002:" else f"[{prefix}{high:x}:{low:x}]"


def battery(port):
    hosts = [spelling for address in INNER for spelling in spellings(address)]
    hosts += [f"[{address}]" for address in SIX] + [name + dot for name in NAMES for dot in ("", ".")]
    urls = [f"http://{host}:{port}/picture?sig=secret" for host in hosts]
    urls += [form.format(host="127.0.0.1", port=port) for form in AROUND]
    urls += [f"{scheme}://127.0.0.1:{port}/" for scheme in SCHEMES]
    return urls + [form.format(port=port) for form in FOREIGN]


@pytest.fixture
async def canary():
    async with Loopback() as canary:
        canary.behaviours["/picture"] = canary.behaviours["/"] = answer(encode(gradient(), "png"))
        yield canary


def ingest_allowing(*ports):
    """Of an operator who lists every host of the battery, so that only what they are is left to refuse them."""
    listed = ["127.0.0.1", "::1", *INNER, *SIX, *NAMES, HOST]
    settings = MediaSettings(
        allowed_domains=tuple(dict.fromkeys(listed)),
        allowed_private_hosts=(HOST,),
        allow_http=True,
        allowed_ports=ports,
        fetch_timeout_s=60.0,
        max_redirects=3,
    )
    return MediaIngest(settings, None, lookup=lambda host, port: ["127.0.0.1"])


async def outcome(ingest, url):
    try:
        await ingest.collect([MediaReference("image", url, "/0")], 60)
    except MediaError as error:
        return error.code, error.message
    return "accepted", ""


async def test_inner_addresses_in_every_spelling(canary):
    urls = battery(canary.port)
    assert len(set(urls)) >= 150
    ingest = ingest_allowing(canary.port)
    outcomes, slowest_s = {}, 0.0
    for url in urls:
        started = time.process_time()
        outcomes[url] = await outcome(ingest, url)
        slowest_s = max(slowest_s, time.process_time() - started)
    assert slowest_s < 2.0
    await ingest.aclose()
    assert {url: code for url, (code, _) in outcomes.items() if code != "media_refused"} == {}
    assert [url for url, (_, message) in outcomes.items() if "secret" in message] == []
    assert canary.num_connections == 0


async def test_redirects_to_them(canary):
    async with Loopback() as server:
        ingest = ingest_allowing(server.port, canary.port)
        # A header cannot start with a tab, and a place without a scheme is a path here.
        places = [url for url in battery(canary.port) if url.isascii() and url[0] != "\t" and url[0] != "1"]
        places.append(f"///127.0.0.1:{canary.port}/")
        assert len(places) >= 150
        outcomes = {}
        for at, place in enumerate(places):
            server.behaviours[f"/{at}"] = redirect(place)
            outcomes[place] = await outcome(ingest, server.url(f"/{at}", HOST))
        assert {place: code for place, (code, _) in outcomes.items() if code != "media_refused"} == {}
        assert len(server.requests) == len(places)  # each was asked for once, none a second time
        await ingest.aclose()
    assert canary.num_connections == 0


async def test_the_canary_would_notice(canary):
    ingest = ingest_allowing(canary.port)
    assert await outcome(ingest, canary.url("/picture", HOST)) == ("accepted", "")
    await ingest.aclose()
    assert canary.num_connections == 1
