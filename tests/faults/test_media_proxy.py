"""Downloads through the operator's proxy: all of them, none past it, and not a word about it to callers."""

import asyncio
import base64
import contextlib
import logging
import shutil
import socket
import ssl
import subprocess
import traceback

import aiohttp.connector
import pytest

from chiasm.errors import InvalidSettingError, MediaFetchError, MediaRefusedError
from chiasm.media.ingest import MediaIngest, MediaReference
from chiasm.settings import MediaSettings, resolve
from tests.faults.loopback import Loopback, answer, garbage, hang, redirect, reset
from tests.unit.media.pictures import encode, gradient

PICTURE = encode(gradient(), "png")
HOST = "img.example"
CREDENTIALS = "reader:pa%3Ass-w0rd"
PASSWORDS = ("pa:ss-w0rd", "pa%3Ass-w0rd", base64.b64encode(b"reader:pa:ss-w0rd").decode())


class Around:
    """A proxy, and a canary: the server that URLs name, where nobody may come by himself."""

    def __init__(self, proxy, canary, collect, close):
        self.proxy, self.canary, self.collect, self.close = proxy, canary, collect, close

    def url(self, path, scheme="http"):
        return f"{scheme}://{HOST}:{self.canary.port}{path}"


@pytest.fixture
async def around(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "*")
    opened = []

    async def collect(*urls, addresses=("127.0.0.1",), **options):
        settings = MediaSettings(
            **{
                "allowed_domains": (HOST, "127.0.0.1"),
                "allowed_private_hosts": (HOST, "127.0.0.1"),
                "allow_http": True,
                "allowed_ports": (canary.port,),
                "proxy": f"http://{CREDENTIALS}@127.0.0.1:{proxy.port}",
                "fetch_timeout_s": 20.0,
                **options,
            }
        )
        ingest = MediaIngest(settings, None, lookup=lambda host, port: list(addresses))
        opened.append(ingest)
        return await ingest.collect([MediaReference("image", url, f"/{i}") for i, url in enumerate(urls)], 30.0)

    async def close():
        while opened:
            await opened.pop().aclose()

    async with Loopback() as proxy, Loopback() as canary:
        yield Around(proxy, canary, collect, close)
        await close()


async def test_plain_downloads_go_through_the_proxy_with_its_credentials_and_none_beside_it(around):
    url = around.url("/a%2Fb.png")
    around.proxy.behaviours[url] = answer(PICTURE)
    around.canary.behaviours["/a%2Fb.png"] = answer(PICTURE)
    [item] = await around.collect(url + "?X-Sig=%2B+%3d/")
    assert item.source.data == PICTURE
    assert around.canary.num_connections == 0
    [request] = around.proxy.requests
    assert request.startswith(f"GET {url}?X-Sig=%2B+%3d/ HTTP/1.1\r\n")
    assert f"Host: {HOST}:{around.canary.port}\r\n" in request
    assert f"Proxy-Authorization: Basic {PASSWORDS[-1]}\r\n" in request


async def test_the_canary_would_notice(around):
    around.canary.behaviours["/a.png"] = answer(PICTURE)
    assert len(await around.collect(around.url("/a.png"), proxy="")) == 1  # and the environment's proxies do not count
    assert (around.canary.num_connections, around.proxy.num_connections) == (1, 0)


@pytest.mark.parametrize("address", ["10.0.0.1", "169.254.169.254", "::1"])
async def test_forbidden_addresses_are_refused_before_the_proxy_hears_of_them(around, address):
    with pytest.raises(MediaRefusedError, match="not at a public address"):
        await around.collect(around.url("/a.png"), addresses=("8.8.8.8", address), allowed_private_hosts=())
    with pytest.raises(MediaRefusedError, match="not among the allowed domains"):
        await around.collect(around.url("/a.png").replace(HOST, "other.example"))
    assert (around.canary.num_connections, around.proxy.num_connections) == (0, 0)


async def test_each_hop_of_a_redirect_is_judged(around):
    first, second = around.url("/1"), around.url("/2")
    around.proxy.behaviours = {
        first: redirect("/2"),
        second: answer(PICTURE),
        around.url("/away"): redirect(f"http://inner.example:{around.canary.port}/"),
    }
    assert len(await around.collect(first, max_redirects=1)) == 1
    assert [request.split()[1] for request in around.proxy.requests] == [first, second]
    with pytest.raises(MediaRefusedError, match="redirects to where policy forbids"):
        await around.collect(around.url("/away"), max_redirects=1)
    with pytest.raises(MediaRefusedError, match="which is not followed"):
        await around.collect(first)
    assert len(around.proxy.requests) == 4
    assert around.canary.num_connections == 0


FAULTS = {
    "407": (answer(b"", "407 Proxy Authentication Required"), "refuses our credentials"),
    "502": (answer(b"no route to 10.1.2.3", "502 Bad Gateway"), "img.example:[0-9]+ gave no usable answer"),
    "503": (answer(b"", "503 Service Unavailable"), "img.example:[0-9]+ gave no usable answer"),
    "504": (answer(b"", "504 Gateway Timeout"), "img.example:[0-9]+ gave no usable answer"),
    "reset": (reset, "img.example:[0-9]+ gave no usable answer"),
    "not http": (garbage, "img.example:[0-9]+ gave no usable answer"),
    "never answers": (hang, "did not deliver within 0.5 s"),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_that_fails_is_a_coded_error_without_its_secrets(around, caplog, scheme, name):
    caplog.set_level(logging.DEBUG)
    behaviour, cause = FAULTS[name]
    url = around.url("/a.png?sig=secret", scheme)
    around.proxy.behaviours = {url.partition("?")[0]: behaviour, f"{HOST}:{around.canary.port}": behaviour}
    with pytest.raises(MediaFetchError, match=cause) as caught:
        await around.collect(url, fetch_timeout_s=0.5 if name == "never answers" else 20.0)
    assert around.proxy.requests[0].split()[0] == ("GET" if scheme == "http" else "CONNECT")
    assert around.canary.num_connections == 0
    assert caught.value.code == "media_fetch_failed"
    shown = "".join(traceback.format_exception(caught.value)) + caplog.text + repr(caught.value.__cause__)
    assert not any(word in shown for word in (*PASSWORDS, f":{around.proxy.port}", "10.1.2.3"))


@pytest.mark.parametrize("host", ["127.0.0.1", "proxy.invalid"])
async def test_a_proxy_that_is_not_there_is_a_coded_error(around, monkeypatch, host):
    lookup = socket.getaddrinfo

    def unknown(name, *rest, **more):
        if name == "proxy.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return lookup(name, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(MediaFetchError, match="proxy that downloads go through cannot be reached") as caught:
        await around.collect(around.url("/a.png"), proxy=f"http://{CREDENTIALS}@{host}:1")
    assert "media.proxy" in caught.value.hint
    assert around.canary.num_connections == 0
    assert not any(word in "".join(traceback.format_exception(caught.value)) for word in PASSWORDS)


async def until(condition):
    for _ in range(4000):
        if condition():
            return
        await asyncio.sleep(0.005)
    pytest.fail("never came true")


async def tunnel(server, reader, writer):
    """CONNECT, to where it says: every name of these tests is this machine."""
    port = int(server.requests[-1].split()[1].rpartition(":")[2])
    inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
    await server.send(writer, b"HTTP/1.1 200 Connection established\r\n\r\n")

    async def pump(source, sink):
        with contextlib.suppress(ConnectionError):
            while piece := await source.read(65536):
                sink.write(piece)
                await sink.drain()
        sink.close()

    await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    key, chain = folder / "key.pem", folder / "chain.pem"
    made = ["-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(chain), "-days", "2"]
    named = ["-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST},IP:127.0.0.1"]
    subprocess.run(["openssl", "req", *made, *named], check=True, capture_output=True, timeout=60)
    return key, chain


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_tls_is_spoken_with_the_server_itself(around, certificate, monkeypatch, scheme):
    key, chain = certificate
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain, key)
    monkeypatch.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", ssl.create_default_context(cafile=str(chain)))
    async with Loopback(context) as server, Loopback(context if scheme == "https" else None) as proxy:
        server.behaviours["/a.png"] = answer(PICTURE)
        proxy.behaviours[f"{HOST}:{server.port}"] = tunnel
        [item] = await around.collect(
            f"https://{HOST}:{server.port}/a.png?sig=secret",
            proxy=f"{scheme}://{CREDENTIALS}@127.0.0.1:{proxy.port}",
            allowed_ports=(server.port,),
        )
        assert item.source.data == PICTURE
        [request] = proxy.requests
        assert f"Proxy-Authorization: Basic {PASSWORDS[-1]}\r\n" in request
        assert "secret" not in request
        assert not any("Proxy-Authorization" in request for request in server.requests)
        await around.close()
        await until(lambda: server.num_open == proxy.num_open == 0)


@pytest.mark.parametrize(
    "proxy", ["socks5://u:pa:ss-w0rd@host", "http://u:pa:ss-w0rd@", "pa:ss-w0rd@host", "http://u:pa:ss-w0rd@h:x"]
)
def test_what_is_no_proxy_is_refused_at_the_start_without_being_repeated(proxy):
    with pytest.raises(InvalidSettingError, match=r"media\.proxy") as caught:
        MediaIngest(MediaSettings(proxy=proxy), None)
    assert "ss-w0rd" not in str(caught.value)


def test_the_settings_dump_does_not_hold_it():
    resolved = resolve(values={"media.proxy": f"http://{CREDENTIALS}@proxy.example:3128"}, environment={})
    assert {name: value for name, value, _ in resolved.rows()}["media.proxy"] == "***"
    with pytest.raises(InvalidSettingError, match=r"media\.proxy = \*\*\*") as caught:
        resolve(values={"media.proxy": f"ftp://{CREDENTIALS}@proxy.example"}, environment={})
    assert CREDENTIALS not in str(caught.value)
