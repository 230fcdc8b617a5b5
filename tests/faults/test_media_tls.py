"""Over TLS the certificate is checked against the name in the URL, while the checked address is dialled."""

import shutil
import ssl
import subprocess

import aiohttp.connector
import pytest

from chiasm.errors import MediaFetchError, MediaRefusedError
from chiasm.media.ingest import MediaIngest, MediaReference
from chiasm.settings import MediaSettings
from tests.faults.loopback import Loopback, answer, redirect
from tests.unit.media.pictures import encode, gradient

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
PICTURE = encode(gradient(), "png")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subject = ["-subj", "/CN=img.example", "-addext", "subjectAltName=DNS:img.example", "-days", "2"]
    made = ["-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", *made, *subject], check=True, capture_output=True, timeout=60)
    return key, certificate


@pytest.fixture
async def server(certificate, monkeypatch):
    key, chain = certificate
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain, key)
    asked_names = []
    context.sni_callback = lambda connection, name, context: asked_names.append(name)
    trusting = ssl.create_default_context(cafile=str(chain))
    monkeypatch.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", trusting)
    async with Loopback(context) as server:
        server.behaviours["/"] = answer(PICTURE)
        server.asked_names = asked_names
        yield server


async def collect(server, host, **options):
    options = {"allowed_ports": (server.port,), **options}
    settings = MediaSettings(allowed_domains=(host,), allowed_private_hosts=(host,), **options)
    ingest = MediaIngest(settings, None, lookup=lambda host, port: ["127.0.0.1"])
    try:
        return await ingest.collect([MediaReference("image", f"https://{host}:{server.port}/", "/0")], 20)
    finally:
        await ingest.aclose()


async def test_the_name_is_kept_for_tls(server):
    [item] = await collect(server, "img.example")
    assert item.source.data == PICTURE
    assert server.asked_names == ["img.example"]


async def test_a_certificate_for_another_name_is_refused(server):
    with pytest.raises(MediaFetchError, match="no usable answer"):
        await collect(server, "other.example")
    assert server.requests == []


async def test_an_untrusted_certificate_is_refused(server, monkeypatch):
    monkeypatch.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", ssl.create_default_context())
    with pytest.raises(MediaFetchError, match="no usable answer"):
        await collect(server, "img.example")
    assert server.requests == []


async def test_a_redirect_stays_within_tls(server):
    async with Loopback() as plain:
        plain.behaviours["/"] = answer(PICTURE)
        ports = (server.port, plain.port)
        server.behaviours["/"] = redirect(f"http://img.example:{plain.port}/")
        with pytest.raises(MediaRefusedError, match="policy forbids"):
            await collect(server, "img.example", allow_http=True, max_redirects=3, allowed_ports=ports)
        assert plain.num_connections == 0
    server.behaviours |= {"/": redirect(f"https://img.example:{server.port}/picture"), "/picture": answer(PICTURE)}
    [item] = await collect(server, "img.example", max_redirects=3)
    assert item.source.data == PICTURE
