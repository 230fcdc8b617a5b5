"""What a request says about a medium, sorted by where its bytes come from."""

import re
from typing import Literal

import msgspec

from chiasm.errors import MediaRefusedError
from chiasm.media.data_url import data_url_label
from chiasm.media.fetch.policy import HttpUrl, UrlPolicy

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,15}):")


class MediaReference(msgspec.Struct, frozen=True):
    """One medium as a request names it. `param` is the JSON pointer of `url` in the request.

    The payload of a data URL may stand apart from it: as a view of the request's body, `url` then is the head and a
    mark of that payload. `fps` and `num_frames` are what is asked for of a video; at most one is given.
    """

    kind: Literal["image", "video", "audio"]
    url: str
    param: str
    payload: memoryview | None = None
    fps: float | None = None
    num_frames: int | None = None

    def __repr__(self) -> str:  # the URL may be a payload or carry a signature
        return f"MediaReference({self.kind}, {self.param})"


class DataUrl(msgspec.Struct, frozen=True):
    """A data URL whose head is in order; the payload is still encoded. `label` is the media type it claims."""

    url: str
    label: str
    payload: memoryview | None = None

    @property
    def num_chars(self) -> int:
        """About as long as the whole URL."""
        return len(self.url) if self.payload is None else len(self.payload)

    def __repr__(self) -> str:
        return f"DataUrl({self.label})"


class FileUrl(msgspec.Struct, frozen=True):
    """A file URL, not yet looked at."""

    url: str

    def __repr__(self) -> str:
        return "FileUrl()"


def parse_reference(reference: MediaReference, policy: UrlPolicy) -> DataUrl | FileUrl | HttpUrl:
    """Sort a reference by its scheme and refuse what policy forbids. Touches no network and no file.

    Raises:
        MediaDecodeError: A data URL of another form than the accepted one.
        MediaRefusedError: A scheme, host or port that is not allowed.
    """
    url = reference.url
    scheme = _scheme(url)
    if scheme == "data":
        return DataUrl(url, data_url_label(url), reference.payload)
    if scheme == "file":
        return FileUrl(url)
    if scheme in ("http", "https"):
        return policy.check(url)
    raise MediaRefusedError(f"URLs of scheme '{scheme}' are not fetched", hint="Use https or a data URL")


def _scheme(url: str) -> str:
    match = _SCHEME.match(url)
    if match is None:
        raise MediaRefusedError(
            "The reference has no scheme", hint="Use https://..., or data:image/png;base64,<data> for base64 data"
        )
    scheme = match.group(1)
    if scheme != scheme.lower():
        raise MediaRefusedError("The URL's scheme is not in lower case", hint=f"Write '{scheme.lower()}:'")
    return scheme
