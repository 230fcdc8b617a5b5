"""Data URLs: one documented form in, exact bytes or a refusal out.

The form is `data:<type>/<subtype>;base64,<standard alphabet>`. Line breaks and tabs in the payload are ignored and the
closing '=' may be missing, because encoders differ in both and neither changes the bytes. Everything else is refused
with the reason; guessing (a space for '+', '-' for '+') could decode to other bytes than were meant.
"""

import binascii
import re
from contextlib import suppress

import pybase64

from chiasm.errors import MediaDecodeError, MediaTooLargeError

FORM = "data:image/png;base64,<data>"
_HEAD = re.compile(r"data:([A-Za-z0-9!#$&^_.+-]{1,64}/[A-Za-z0-9!#$&^_.+-]{1,64});base64,")
_MAX_HEAD_CHARS = 160


def data_url_label(url: str) -> str:
    """Return the media type that a data URL claims. Raises `MediaDecodeError` when it is not of the accepted form."""
    match = _HEAD.match(url, 0, _MAX_HEAD_CHARS)
    if match is None:
        raise MediaDecodeError(f"Not a data URL of the accepted form: {_reason(url)}", hint=f"Write it as {FORM}")
    return match.group(1).lower()


def decode_data_url(url: str, max_bytes: int) -> bytes:
    """Return the bytes of a data URL. The payload never appears in an error.

    Raises:
        MediaTooLargeError: More than `max_bytes`; found before anything is decoded.
        MediaDecodeError: Not of the accepted form, or the payload is not base64.
    """
    data_url_label(url)
    try:
        text = url[url.index(",") + 1 :].encode("ascii")
    except UnicodeEncodeError:
        raise MediaDecodeError("The data URL's payload holds characters outside ASCII") from None
    return decode_payload(text, max_bytes)


def decode_payload(text: bytes | memoryview, max_bytes: int) -> bytes:
    """Return the bytes of what stands after the comma of a data URL. Raises as `decode_data_url` does."""
    if len(text) * 3 // 4 <= max_bytes:
        with suppress(binascii.Error, ValueError):  # as almost all of them are; cleaning them would take longer
            return pybase64.b64decode(text, validate=True)
    payload = _cleaned(bytes(text))
    num_bytes = len(payload) * 3 // 4
    if num_bytes > max_bytes:
        raise MediaTooLargeError(f"The data URL holds {num_bytes} bytes; the limit is {max_bytes}")
    try:
        return pybase64.b64decode(payload + b"=" * (-len(payload) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise MediaDecodeError(
            f"The data URL's payload is not base64: {_flaw(payload)}", hint=f"Write it as {FORM}, standard alphabet"
        ) from None  # the library's own message may quote the payload


def _cleaned(text: bytes) -> bytes:
    text = text.strip().translate(None, b"\r\n\t")
    for padding in (b"==", b"="):
        if text.endswith(padding):
            return text[: -len(padding)]
    return text


def _reason(url: str) -> str:
    head = url[:_MAX_HEAD_CHARS].partition(",")[0]
    if not head.startswith("data:"):
        return "the scheme must be written 'data:'"
    if not head.endswith(";base64"):
        return "';base64,' must come before the payload; percent-encoded data is not accepted"
    if head == "data:;base64":
        return "the media type is missing"
    return "only a media type may come before ';base64,'"


def _flaw(payload: bytes) -> str:
    if b" " in payload:
        return "it holds spaces, perhaps a '+' lost in form decoding"
    if b"-" in payload or b"_" in payload:
        return "it uses the URL-safe alphabet"
    if b"%" in payload:
        return "it is percent-encoded"
    if len(payload) % 4 == 1:
        return "its length is impossible; characters are missing"
    return "it holds characters outside the alphabet"
