"""An engine opens what the gateway has spooled, and nothing else, whatever it is asked to."""

import os

import pytest

from chiasm.engines.vllm.spool_url import read_spool_url, spool_url
from chiasm.errors import MediaRefusedError, TransferError
from chiasm.protocol.media import SpoolSource


@pytest.fixture
def spool(tmp_path):
    folder = tmp_path / "spool"
    folder.mkdir(mode=0o700)
    (folder / "1-ab-cd").write_bytes(b"picture")
    (tmp_path / "secret").write_bytes(b"secret!")
    return folder


def test_both_names_of_a_spool_file_lead_to_it(spool):
    assert read_spool_url(spool_url(SpoolSource("1-ab-cd", 7)), spool) == b"picture"
    assert read_spool_url((spool / "1-ab-cd").as_uri(), spool) == b"picture"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/x",
        "https://example.org/x.png",
        "ftp://example.org/x",
        "",
        "1-ab-cd",
        "chiasm-spool:../secret/7",
        "chiasm-spool:/etc/passwd/7",
        "chiasm-spool:1-ab-cd",
        "chiasm-spool:1-ab-cd/0",
        "chiasm-spool:1-ab-cd/-7",
        "chiasm-spool:1-ab-cd/7\n",
        "file:///etc/passwd",
        "file://host/etc/passwd",
        "file:etc",
    ],
)
def test_any_other_url_is_refused(spool, url):
    with pytest.raises(MediaRefusedError):
        read_spool_url(url, spool)


@pytest.mark.parametrize("tail", ["../secret", "%2e%2e/secret", "sub/../1-ab-cd", "sub/x"])
def test_no_way_leads_out_of_the_spool(spool, tail):
    with pytest.raises((MediaRefusedError, TransferError)):
        read_spool_url(f"file://{spool}/{tail}", spool)


def test_what_is_not_there_is_said_to_be_gone(spool):
    for url in ("chiasm-spool:1-ab-ce/7", "chiasm-spool:1-ab-cd/8", (spool / "1-ab-ce").as_uri()):
        with pytest.raises(TransferError):
            read_spool_url(url, spool)


def test_links_and_pipes_are_not_followed(spool):
    (spool / "a-link").symlink_to(spool.parent / "secret")
    os.mkfifo(spool / "a-pipe")
    for name in ("a-link", "a-pipe"):
        with pytest.raises(TransferError):
            read_spool_url(f"chiasm-spool:{name}/7", spool)
        with pytest.raises(TransferError):
            read_spool_url((spool / name).as_uri(), spool)
