import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chiasm.errors import MediaDecodeError, MediaError, MediaTooLargeError
from chiasm.media.data_url import data_url_label, decode_data_url, decode_payload
from chiasm.media.identity import content_identity
from tests.unit.media.pictures import data_url, encode, noise

DATA = encode(noise(), "png")
PAYLOAD = base64.b64encode(DATA).decode()
HEAD = "data:image/png;base64,"
LIMIT = 1 << 20


@pytest.mark.parametrize(
    "url",
    [
        HEAD + PAYLOAD,
        HEAD + PAYLOAD.rstrip("="),
        HEAD + base64.encodebytes(DATA).decode(),
        HEAD + "\r\n".join(PAYLOAD[i : i + 76] for i in range(0, len(PAYLOAD), 76)),
        HEAD + "\n  ".join((" " + PAYLOAD + " ").split("x")).replace("\n  ", "x"),
        HEAD + "\t" + PAYLOAD + "\n",
        "data:image/jpeg;base64," + PAYLOAD,
        "data:application/octet-stream;base64," + PAYLOAD,
        "data:image/svg+xml;base64," + PAYLOAD,
    ],
)
def test_forms_that_mean_the_same_bytes_have_the_same_identity(url):
    assert content_identity(decode_data_url(url, LIMIT)) == content_identity(DATA)


@settings(deadline=None)
@given(st.binary(max_size=600), st.integers(1, 90))
def test_any_bytes_wrapped_anywhere(data, width):
    payload = base64.b64encode(data).decode()
    wrapped = "\n".join(payload[i : i + width] for i in range(0, len(payload), width)).rstrip("=")
    assert decode_data_url(HEAD + wrapped, LIMIT) == data


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("data:;base64," + PAYLOAD, "media type is missing"),
        ("data:image/png;charset=utf-8;base64," + PAYLOAD, "only a media type"),
        ("data:image/png," + PAYLOAD, "percent-encoded"),
        ("data:image/png,%89PNG%0D%0A", "percent-encoded"),
        ("data:," + PAYLOAD, "percent-encoded"),
        ("data:image/png;base64", "base64"),
        ("DATA:image/png;base64," + PAYLOAD, "'data:'"),
        ("data:image/png;BASE64," + PAYLOAD, "base64"),
        ("data:imagepng;base64," + PAYLOAD, "only a media type"),
        ("data:image/p ng;base64," + PAYLOAD, "only a media type"),
        ("data:" + "x" * 500 + "/png;base64," + PAYLOAD, "base64"),
    ],
)
def test_other_forms_are_refused_with_the_cause(url, cause):
    with pytest.raises(MediaDecodeError, match=cause) as caught:
        decode_data_url(url, LIMIT)
    assert PAYLOAD[:12] not in str(caught.value)
    assert "data:image/png;base64," in caught.value.hint


@pytest.mark.parametrize(
    ("payload", "cause"),
    [
        ("ab+/".replace("+", " ") * 40, "spaces"),
        ("ab-_" * 40, "URL-safe"),
        ("ab%2B" * 40, "percent-encoded"),
        ("abcd" * 40 + "e", "length"),
        ("ab!d" * 40, "alphabet"),
        ("ab=d" * 40, "alphabet"),
        ("abcd" * 40 + "===", "length"),
        ("abcdé" * 40, "ASCII"),
    ],
)
def test_payloads_that_are_not_base64_are_refused_without_quoting_them(payload, cause):
    with pytest.raises(MediaDecodeError, match=cause) as caught:
        decode_data_url(HEAD + payload, LIMIT)
    assert payload[:6] not in str(caught.value)


def test_an_empty_payload_is_no_bytes():
    assert decode_data_url(HEAD, LIMIT) == b""


def test_the_limit_holds_before_anything_is_decoded():
    assert decode_data_url(data_url(bytes(1000)), 1000) == bytes(1000)
    with pytest.raises(MediaTooLargeError, match="1002 bytes; the limit is 1000"):
        decode_data_url(HEAD + "!" * 1336, 1000)


def test_the_label_is_only_read():
    assert data_url_label("data:image/JPEG;base64," + PAYLOAD) == "image/jpeg"


@given(st.text(alphabet="AQz+/9=\n -", max_size=14))
def test_the_short_way_never_gives_other_bytes_than_cleaning_first(payload):
    text = payload.encode()
    try:
        short = decode_payload(text, 1000)
    except MediaError:
        short = None
    try:
        long = decode_payload(b"\n" + text, 1000)  # no line break is base64, so that this is always cleaned
    except MediaError:
        long = None
    assert short == long


def test_a_payload_may_be_a_view_of_a_body():
    body = bytearray(b"xxQUJDyy")
    assert decode_payload(memoryview(body)[2:6], 3) == b"ABC"
    with pytest.raises(MediaError, match="not base64"):
        decode_payload(memoryview(bytearray(b"QU-D")), 3)
    with pytest.raises(MediaError, match="3 bytes"):
        decode_payload(memoryview(body)[2:6], 2)
