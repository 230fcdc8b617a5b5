import pytest

from chiasm.errors import MediaDecodeError, MediaRefusedError
from chiasm.media.fetch.policy import HttpUrl, UrlPolicy
from chiasm.media.reference import DataUrl, FileUrl, MediaReference, parse_reference
from chiasm.settings import MediaSettings

POLICY = UrlPolicy(MediaSettings(allowed_domains=("img.example",)))


def parse(url, kind="image"):
    return parse_reference(MediaReference(kind, url, "/p"), POLICY)


def test_references_are_sorted_by_scheme():
    assert isinstance(parse("data:image/png;base64,AAAA"), DataUrl)
    assert isinstance(parse("file:///a.png"), FileUrl)
    assert parse("https://img.example/a.png?sig=1") == HttpUrl("https", "img.example", 443, "/a.png?sig=1")


@pytest.mark.parametrize("url", ["gopher://x", "ftp://img.example/a", "javascript:1", "blob:x", "image/png;base64:x"])
def test_other_schemes_are_refused(url):
    with pytest.raises(MediaRefusedError, match="scheme"):
        parse(url)


@pytest.mark.parametrize("url", ["iVBORw0KGgoAAAANSUhEUg==", "", "/etc/passwd", "//img.example/a.png"])
def test_bare_base64_and_other_texts_without_a_scheme_are_refused(url):
    with pytest.raises(MediaRefusedError, match="no scheme") as caught:
        parse(url)
    assert "data:image/png;base64" in caught.value.hint
    assert not url or url not in caught.value.message


@pytest.mark.parametrize("url", ["DATA:image/png;base64,AAAA", "Https://img.example/", "FILE:///a.png"])
def test_schemes_are_written_in_lower_case(url):
    with pytest.raises(MediaRefusedError, match="lower case"):
        parse(url)


def test_malformed_data_urls_are_found_before_anything_is_fetched():
    with pytest.raises(MediaDecodeError):
        parse("data:image/png,xx")


def test_videos_come_from_where_pictures_do():
    assert parse("https://img.example/a.mp4", "video") == HttpUrl("https", "img.example", 443, "/a.mp4")
    with pytest.raises(MediaRefusedError):
        parse("https://other.example/a.mp4", "video")


def test_nothing_that_may_be_secret_is_printed():
    secret = "https://img.example/a.png?sig=secret"
    assert "secret" not in repr(MediaReference("image", secret, "/p"))
    assert "secret" not in repr(parse(secret))
    assert "QUJD" not in repr(parse("data:image/png;base64,QUJD"))
    assert "secret" not in repr(parse("file:///secret.png"))
