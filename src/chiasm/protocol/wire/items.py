"""Media items as content parts, and back."""

import re
import secrets
from collections.abc import Sequence

import msgspec
import pybase64
from msgspec import UNSET

from chiasm.errors import InvalidRequestError
from chiasm.protocol.media import EmbeddingHandle, InlineSource, LateSource, MediaItem, SpoolSource
from chiasm.protocol.wire.bodies import (
    EmbeddingEntry,
    EmbedsPart,
    ItemBody,
    Metadata,
    PicturePart,
    Url,
    VideoEmbedsPart,
    VideoPart,
)

SPOOL_SCHEME = "chiasm-spool:"
"""Then the file's bytes, a slash and its name in the reader's own spool: `chiasm-spool:1234/0f3a`."""

_SPOOL = SPOOL_SCHEME.encode()
_BASE64 = b";base64,"
_MAX_HEAD_BYTES = 256
_MARK = b"chiasm-payload-" + secrets.token_hex(16).encode() + b"-"  # nobody else's text can hold it
_MARKS = re.compile(_MARK + rb"(\d+)-")
MediaPart = PicturePart | EmbedsPart | VideoPart | VideoEmbedsPart


class Payloads:
    """Base64 of media, kept out of the body while that is encoded: megabytes are written once and not copied."""

    def __init__(self) -> None:
        self._texts: list[bytes] = []

    def add(self, data: bytes) -> bytes:
        """Keep the base64 of `data`; returns what stands for it in the body."""
        self._texts.append(pybase64.b64encode(data))
        return _MARK + b"%d-" % (len(self._texts) - 1)

    def spliced(self, body: bytes) -> tuple[bytes, ...]:
        """The pieces of the body, with the base64 where its marks stood."""
        if not self._texts:
            return (body,)
        pieces = _MARKS.split(body)
        pieces[1::2] = [self._texts[int(number)] for number in pieces[1::2]]
        return tuple(pieces)


def entries_of(items: Sequence[MediaItem]) -> dict[str, EmbeddingEntry]:
    """`ec_transfer_params` of the items that have been encoded; the first handle of an identity stands for it."""
    entries: dict[str, EmbeddingEntry] = {}
    for index, item in enumerate(items):
        if isinstance(item.source, EmbeddingHandle):
            entry = EmbeddingEntry([], metadata_of(item.source), item.source)
            entries.setdefault(item.identity, entry).item_indices.append(index)
    return entries


def metadata_of(handle: EmbeddingHandle) -> Metadata:
    """What a prompt must know of an embedding."""
    found = handle.metadata
    grid = UNSET if found.grid_thw is None else found.grid_thw
    if found.kind == "image":
        return Metadata(image_grid_thw=grid)
    seconds = UNSET if found.second_per_grid_s is None else found.second_per_grid_s
    return Metadata(video_grid_thw=grid, second_per_grid_ts=seconds)


def part_of(item: MediaItem, payloads: Payloads) -> MediaPart:
    """The content part of an item; bytes that it carries go to `payloads`."""
    source, identity = item.source, item.identity
    if isinstance(source, EmbeddingHandle | LateSource):
        metadata = Metadata() if isinstance(source, LateSource) else metadata_of(source)
        return EmbedsPart(metadata, identity) if item.kind == "image" else VideoEmbedsPart(metadata, identity)
    if isinstance(source, SpoolSource):
        url = _url(f"{SPOOL_SCHEME}{source.num_bytes}/{source.name}".encode())
    else:
        is_plain = item.format.isascii() and item.format.isalnum()
        kind = f"{item.kind}/{item.format}" if is_plain else "application/octet-stream"
        url = _url(f"data:{kind};base64,".encode() + payloads.add(source.data))
    return PicturePart(url, identity) if item.kind == "image" else VideoPart(url, identity)


def body_of(item: MediaItem, *, is_placed: bool, entries: dict[str, EmbeddingEntry]) -> ItemBody:
    """What the content part does not say. `is_placed` says whether there is one."""
    source = item.source
    told = is_placed and not isinstance(source, LateSource)
    if isinstance(source, EmbeddingHandle):
        told = told and entries[item.identity].handle == source
    return ItemBody(
        kind=item.kind,
        identity=item.identity,
        format=item.format,
        width=item.width,
        height=item.height,
        is_animated=item.is_animated,
        video=item.video,
        source=UNSET if told else source,
    )


def item_of(body: ItemBody, part: MediaPart | None, entries: dict[str, EmbeddingEntry], index: int) -> MediaItem:
    """Rebuild an item. Raises `InvalidRequestError` when its parts do not go together."""
    if part is not None and part.uuid != body.identity:
        raise _refusal(index, "Part and description of the item differ in identity")
    if part is not None and body.kind != ("image" if isinstance(part, PicturePart | EmbedsPart) else "video"):
        raise _refusal(index, "Part and description of the item differ in kind")
    if (body.kind == "video") != (body.video is not None):
        raise _refusal(index, "A video says which frames are meant, and nothing else does")
    if body.source is not UNSET:
        source = body.source
    elif part is None:
        raise _refusal(index, "The item stands in no message and has no source")
    elif isinstance(part, EmbedsPart | VideoEmbedsPart):
        source = _handle_of(part, entries, index)
    else:
        source = _source_of(part.image_url if isinstance(part, PicturePart) else part.video_url, index)
    return MediaItem(
        kind=body.kind,
        identity=body.identity,
        format=body.format,
        width=body.width,
        height=body.height,
        is_animated=body.is_animated,
        video=body.video,
        source=source,
    )


def _handle_of(part: EmbedsPart | VideoEmbedsPart, entries: dict[str, EmbeddingEntry], index: int) -> EmbeddingHandle:
    entry = entries.get(part.uuid)
    if entry is None:
        raise _refusal(index, "ec_transfer_params do not name the item's embedding")
    told = part.image_embeds if isinstance(part, EmbedsPart) else part.video_embeds
    if metadata_of(entry.handle) != told:
        raise _refusal(index, "The item's grid is not that of its embedding")
    return entry.handle


def _url(text: bytes) -> Url:
    """The URL of a text that needs no escapes."""
    return Url(msgspec.Raw(b'"' + text + b'"'))


def _inline(url: Url) -> InlineSource | None:
    """The bytes of a data URL, decoded where they lie; None when it is none, or not as plain as ours are."""
    text = memoryview(url.url)
    head = bytes(text[:_MAX_HEAD_BYTES])
    start = head.find(_BASE64)
    if not head.startswith(b'"data:') or start < 0 or b"\\" in head[:start]:
        return None
    try:
        return InlineSource(pybase64.b64decode(text[start + len(_BASE64) : -1], validate=True))
    except ValueError:  # binascii.Error is one
        return None


def _source_of(wire_url: Url, index: int) -> InlineSource | SpoolSource:
    if (inline := _inline(wire_url)) is not None:
        return inline
    try:
        url = msgspec.json.decode(wire_url.url, type=str).encode()
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise _refusal(index, "The item's URL is not a text") from error
    if url.startswith(_SPOOL):
        num_bytes, _, name = url[len(_SPOOL) :].decode(errors="replace").partition("/")
        try:
            return msgspec.convert({"type": "spool", "name": name, "num_bytes": int(num_bytes)}, SpoolSource)
        except (ValueError, msgspec.ValidationError) as error:
            raise _refusal(index, "No name of a file in the spool") from error
    start = url.find(_BASE64, 0, _MAX_HEAD_BYTES)
    if not url.startswith(b"data:") or start < 0:
        raise _refusal(index, "A worker takes media as base64 data or from the spool")
    try:
        return InlineSource(pybase64.b64decode(url[start + len(_BASE64) :], validate=True))
    except ValueError as error:
        raise _refusal(index, "The item's base64 is broken") from error


def _refusal(index: int, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{what} (item {index})", param=f"/chiasm/items/{index}", item=index)
