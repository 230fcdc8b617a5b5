import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chiasm.errors import MediaRefusedError
from chiasm.media.fetch.policy import UrlPolicy
from chiasm.settings import MediaSettings


def check(url, **options):
    options = {"allowed_domains": ("img.example", ".cdn.example"), **options}
    return UrlPolicy(MediaSettings(**options)).check(url)


@pytest.mark.parametrize(
    ("url", "host", "port", "target"),
    [
        ("https://img.example", "img.example", 443, "/"),
        ("https://img.example:443/a/b.png", "img.example", 443, "/a/b.png"),
        ("https://IMG.Example/A.png", "img.example", 443, "/A.png"),
        ("https://img.example./a", "img.example", 443, "/a"),
        ("https://a.b.cdn.example/x%2Fy?sig=%2B+/=&e=1", "a.b.cdn.example", 443, "/x%2Fy?sig=%2B+/=&e=1"),
        ("https://img.example:80/a", "img.example", 80, "/a"),
        ("https://img.example?x=1", "img.example", 443, "/?x=1"),
    ],
)
def test_allowed_urls(url, host, port, target):
    checked = check(url)
    assert (checked.host, checked.port, checked.target) == (host, port, target)


def test_nothing_is_allowed_by_default():
    with pytest.raises(MediaRefusedError, match="allowed domains"):
        UrlPolicy(MediaSettings()).check("https://img.example/a.png")


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/img.example",
        "https://img.example.evil.example/",
        "https://evilimg.example/",
        "https://cdn.example/",  # '.cdn.example' means its subdomains
        "https://evilcdn.example/",
        "https://example/",
    ],
)
def test_only_listed_domains(url):
    with pytest.raises(MediaRefusedError, match="allowed domains"):
        check(url)


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("http://img.example/", "scheme"),
        ("https://user@img.example/", "credentials"),
        ("https://user:pw@img.example/", "credentials"),
        ("https://user@evil@127.0.0.1/", "credentials"),
        ("https://img.example/#x", "fragment"),
        ("https://img.example/#", "fragment"),
        ("https://img.example:8080/", "Port 8080"),
        ("https://img.example:0/", "Port 0"),
        ("https://img.example:99999/", "port"),
        ("https://img.example:x/", "port"),
        ("https://img.example/a b", "spaces"),
        ("https://img.example/a\r\nHost: x", "spaces"),
        ("https://img.example\\@evil.example/", "backslashes"),
        ("https://img.example/\u00e9", "ASCII"),
        ("https://\u0456mg.example/", "ASCII"),
        ("https://ｉmg.example/", "ASCII"),
        ("https:///a", "host"),
        ("https://", "host"),
        ("https://-x.example/", "malformed"),
        ("https://a..example/", "malformed"),
        ("https://%69mg.example/", "malformed"),
        ("https://img.example,evil.example/", "malformed"),
        ("https://" + "a" * 64 + ".example/", "malformed"),
        ("https://" + "a." * 130 + "example/", "malformed"),
        ("https://[::1/", "malformed"),
        ("https://[img.example]/", "IPv6|malformed"),
        ("https://[fe80::1%25eth0]/", "zone|IPv6|malformed"),
        ("https://img.example/" + "a" * 9000, "8192"),
    ],
)
def test_malformed_and_forbidden_urls(url, cause):
    with pytest.raises(MediaRefusedError, match=cause):
        check(url)


ADDRESSES = [
    "127.0.0.1",
    "10.1.2.3",
    "169.254.169.254",
    "0.0.0.0",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:a9fe:a9fe]",
    "[::127.0.0.1]",
    "[2002:7f00:1::]",
    "[64:ff9b::7f00:1]",
    "[fd00:ec2::254]",
]


@pytest.mark.parametrize("host", ADDRESSES)
def test_inner_addresses_are_refused_even_when_listed_as_domains(host):
    with pytest.raises(MediaRefusedError, match="public"):
        check(f"https://{host}/", allowed_domains=(host,))


@pytest.mark.parametrize(
    "host",
    ["2130706433", "0x7f.1", "0x7f000001", "0177.0.0.1", "127.1", "127.0.0.01", "1.2.3.4.5", "0x", "017700000001"],
)
def test_other_spellings_of_ipv4_are_no_hosts(host):
    with pytest.raises(MediaRefusedError, match="IPv4"):
        check(f"https://{host}/", allowed_domains=(host, "127.0.0.1"), allowed_private_hosts=(host, "127.0.0.1"))


def test_private_addresses_that_the_operator_lists():
    options = {"allowed_domains": ("127.0.0.1", "::1"), "allowed_private_hosts": ("127.0.0.1", "[::1]")}
    assert check("https://127.0.0.1/a", **options).origin == "https://127.0.0.1"
    assert check("https://[0:0::1]/a", **options).origin == "https://[::1]"


def test_link_local_addresses_stay_refused_even_then():
    with pytest.raises(MediaRefusedError):
        check(
            "https://169.254.169.254/", allowed_domains=("169.254.169.254",), allowed_private_hosts=("169.254.169.254",)
        )


def test_http_and_other_ports_when_allowed():
    url = check("http://img.example:8080/a", allow_http=True, allowed_ports=(8080,))
    assert url.origin == "http://img.example:8080"


def test_refusals_hold_neither_path_nor_query():
    with pytest.raises(MediaRefusedError) as caught:
        check("https://evil.example/secret/path?sig=secret")
    assert "secret" not in caught.value.message


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_a_checked_url_or_a_refusal(text):
    try:
        url = check("https://" + text)
    except MediaRefusedError:
        return
    assert url.host == "img.example" or url.host.endswith(".cdn.example")
