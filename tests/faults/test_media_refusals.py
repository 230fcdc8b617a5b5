"""References that aim at the inner network are refused before anything is dialled: a canary counts connections."""

import time

import pytest

from chiasm.errors import MediaFetchError, MediaRefusedError
from chiasm.media.ingest import MediaIngest, MediaReference
from chiasm.settings import MediaSettings
from tests.faults.loopback import Loopback, answer
from tests.unit.media.pictures import encode, gradient

PICTURE = encode(gradient(), "png")


@pytest.fixture
async def canary():
    async with Loopback() as server:
        server.behaviours["/"] = answer(PICTURE)
        yield server


@pytest.fixture
async def refuse(canary):
    opened = []

    async def refuse(url, lookup=None, **options):
        options = {"allow_http": True, "allowed_ports": (80, 443, canary.port, 1), **options}
        extra = {} if lookup is None else {"lookup": lookup}
        ingest = MediaIngest(MediaSettings(**options), None, **extra)
        opened.append(ingest)
        with pytest.raises(MediaRefusedError) as caught:
            await ingest.collect([MediaReference("image", url, "/0")], 10)
        return caught.value

    yield refuse
    for ingest in opened:
        await ingest.aclose()


AUTHORITIES = [
    "127.0.0.1:{port}",
    "2130706433:{port}",
    "0x7f.1:{port}",
    "0x7f000001:{port}",
    "0177.0.0.1:{port}",
    "127.1:{port}",
    "0:{port}",
    "0.0.0.0:{port}",
    "[::1]:{port}",
    "[::]:{port}",
    "[::ffff:127.0.0.1]:{port}",
    "[::ffff:7f00:1]:{port}",
    "[::127.0.0.1]:{port}",
    "[64:ff9b::127.0.0.1]:{port}",
    "[2002:7f00:1::]:{port}",
    "localhost:{port}",
    "localhost.:{port}",
    "LOCALHOST:{port}",
    "user@127.0.0.1:{port}",
    "user@evil@127.0.0.1:{port}",
    "img.example@127.0.0.1:{port}",
    "127.0.0.1:{port}#@img.example",
    "169.254.169.254",
    "[fd00:ec2::254]",
    "１２７.0.0.1:{port}",
]


@pytest.mark.parametrize("authority", AUTHORITIES)
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_inner_addresses_in_every_spelling(canary, refuse, scheme, authority):
    await refuse(f"{scheme}://{authority.format(port=canary.port)}/", allowed_domains=("img.example",))
    assert canary.num_connections == 0


@pytest.mark.parametrize("authority", [a for a in AUTHORITIES if "@" not in a and not a.startswith("１")])
async def test_listing_a_host_does_not_make_its_address_public(canary, refuse, authority):
    host = authority.format(port=canary.port).removesuffix(f":{canary.port}")
    await refuse(f"http://{authority.format(port=canary.port)}/", allowed_domains=(host, "localhost", "127.0.0.1"))
    assert canary.num_connections == 0


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "gopher://127.0.0.1:{port}/", "ftp://127.0.0.1:{port}/", "dict://x"]
)
async def test_other_schemes(canary, refuse, url):
    await refuse(url.format(port=canary.port))
    assert canary.num_connections == 0


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["93.184.216.34", "127.0.0.1"], ["169.254.169.254"], ["::ffff:127.0.0.1"], ["::1"]]
)
async def test_allowed_names_at_inner_addresses(canary, refuse, addresses):
    error = await refuse(
        f"http://img.example:{canary.port}/", lookup=lambda host, port: addresses, allowed_domains=("img.example",)
    )
    assert canary.num_connections == 0
    assert "img.example" in error.message
    assert not any(address in error.message for address in addresses)  # inner addresses are nobody's business


async def test_a_name_is_resolved_once_and_the_checked_address_is_dialled(canary):
    answers = [["127.0.0.1"], ["169.254.169.254"]]
    settings = MediaSettings(
        allowed_domains=("img.example",),
        allowed_private_hosts=("img.example",),
        allow_http=True,
        allowed_ports=(canary.port,),
    )
    ingest = MediaIngest(settings, None, lookup=lambda host, port: answers.pop(0))
    [item] = await ingest.collect([MediaReference("image", f"http://img.example:{canary.port}/", "/0")], 10)
    assert item.source.data == PICTURE
    assert len(answers) == 1
    await ingest.aclose()


async def test_a_redirect_inwards_is_not_followed(canary, refuse):
    async with Loopback() as outer:
        outer.behaviours["/"] = answer(b"", "302 Found", [f"Location: http://127.0.0.1:{canary.port}/"])
        error = await refuse(
            f"http://img.example:{outer.port}/",
            lookup=lambda host, port: ["127.0.0.1"],
            allowed_domains=("img.example",),
            allowed_private_hosts=("img.example",),
            allowed_ports=(outer.port, canary.port),
        )
        assert outer.num_connections == 1
    assert str(canary.port) not in error.message
    assert canary.num_connections == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "img.example"])
async def test_the_answer_does_not_tell_whether_an_inner_port_is_open(canary, refuse, host):
    closed_port = 1
    messages, times_s = {}, {}
    for port in (canary.port, closed_port):
        started = time.perf_counter()
        error = await refuse(
            f"http://{host}:{port}/",
            lookup=lambda host, port: ["127.0.0.1"],
            allowed_domains=("127.0.0.1", "img.example"),
        )
        times_s[port] = time.perf_counter() - started
        messages[port] = (error.message, error.hint, error.code)
    assert messages[canary.port] == messages[closed_port]
    assert max(times_s.values()) < 5.0
    assert canary.num_connections == 0


async def test_of_an_allowed_host_closed_ports_and_other_services_look_alike(canary):
    async def garbage(server, reader, writer):
        await server.send(writer, b"220 mail.example ESMTP\r\n")
        writer.close()

    canary.behaviours["/"] = garbage
    settings = MediaSettings(
        allowed_domains=("127.0.0.1",),
        allowed_private_hosts=("127.0.0.1",),
        allow_http=True,
        allowed_ports=(canary.port, 1),
    )
    ingest = MediaIngest(settings, None)
    messages = []
    for port in (canary.port, 1):
        with pytest.raises(MediaFetchError) as caught:
            await ingest.collect([MediaReference("image", f"http://127.0.0.1:{port}/", "/0")], 10)
        messages.append(caught.value.message.replace(f":{port}", ""))
    await ingest.aclose()
    assert messages[0] == messages[1]
