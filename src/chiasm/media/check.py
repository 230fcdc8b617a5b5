"""Would the gateway take this? One file or URL through the gateway's own ingest, then the worker's own decoder."""

import asyncio
import re
import time
from pathlib import Path

import msgspec

from chiasm.errors import ChiasmError, DeadlineExceededError, MediaError, TransferError
from chiasm.media.ingest import MediaIngest
from chiasm.media.picture.codecs import codec_border, open_picture
from chiasm.media.picture.decode import decode_picture
from chiasm.media.picture.header import read_header
from chiasm.media.picture.jpeg import without_exif
from chiasm.media.prepare.base import ImagePreparer
from chiasm.media.reference import MediaReference
from chiasm.media.sources import read_source
from chiasm.protocol.media import EmbeddingHandle, LateSource, MediaItem
from chiasm.settings import MediaSettings

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_MAX_SHOWN_CHARS = 200


class Refusal(msgspec.Struct, frozen=True):
    """Why a medium was not taken, as a caller of the server would read it."""

    code: str
    cause: str
    hint: str | None


class PictureFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a picture. `width` and `height` are after EXIF rotation.

    `mode` is Pillow's name for the stored pixels. `mode` and `decode_s` are None when decoding failed, the counts of
    tokens without a model.
    """

    format: str
    width: int
    height: int
    orientation: int
    is_animated: bool
    num_bytes: int
    identity: str
    num_visual_tokens: int | None = None
    num_prompt_tokens: int | None = None
    mode: str | None = None
    decode_s: float | None = None


class MediaVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one file or URL. `picture` is None when it was refused before its header was known to be good.

    `source` is the path, or the URL without what may be secret: payload, credentials, query.
    """

    source: str
    is_accepted: bool
    refusal: Refusal | None = None
    picture: PictureFacts | None = None


async def check_media(
    source: str, settings: MediaSettings, preparer: ImagePreparer | None = None, *, deadline_s: float = 120.0
) -> MediaVerdict:
    """Put one picture through all rules, then decode it. Nothing is raised for a picture that is refused.

    Args:
        source: A URL when it begins with a scheme, otherwise the path of a file, which may lie outside of
            `allowed_root`: that setting is about what callers of a server may name.
        settings: The rules.
        preparer: Of the model that should take the picture; without one, visual tokens are not counted.
        deadline_s: As a request's; decoding comes after it.
    """
    shown, picture = _shown(source), None
    try:
        item = await _collect(source, settings, preparer, deadline_s)
        assert not isinstance(item.source, EmbeddingHandle | LateSource)  # ingest makes none
        data = await asyncio.to_thread(read_source, item.source, settings)
        picture = _facts(item, data, preparer)
        mode, decode_s = await asyncio.to_thread(_decode, data, settings)
    except (MediaError, TransferError, DeadlineExceededError) as error:
        return MediaVerdict(source=shown, is_accepted=False, refusal=_refusal(error), picture=picture)
    picture = msgspec.structs.replace(picture, mode=mode, decode_s=decode_s)
    return MediaVerdict(source=shown, is_accepted=True, picture=picture)


async def _collect(
    source: str, settings: MediaSettings, preparer: ImagePreparer | None, deadline_s: float
) -> MediaItem:
    if _URL.match(source) is None:
        settings = msgspec.structs.replace(settings, allowed_root="/")
    ingest = MediaIngest(settings, preparer)
    try:
        [item] = await ingest.collect([MediaReference("image", _url(source), "")], deadline_s)
    finally:
        await ingest.aclose()
    return item


def _url(source: str) -> str:
    return source if _URL.match(source) else Path(source).absolute().as_uri()


def _facts(item: MediaItem, data: bytes, preparer: ImagePreparer | None) -> PictureFacts:
    plan = None if preparer is None else preparer.plan(item.width, item.height)
    return PictureFacts(
        format=item.format,
        width=item.width,
        height=item.height,
        orientation=read_header(data).orientation,
        is_animated=item.is_animated,
        num_bytes=len(data),
        identity=item.identity,
        num_visual_tokens=None if plan is None else plan.num_embeddings,
        num_prompt_tokens=None if plan is None else plan.num_prompt_tokens,
    )


def _decode(data: bytes, settings: MediaSettings) -> tuple[str, float]:
    """The mode of the stored pixels and the seconds that decoding took."""
    started = time.perf_counter()
    decode_picture(data, settings)
    decode_s = time.perf_counter() - started
    kind = read_header(data).format
    with codec_border(kind), open_picture(without_exif(data) if kind == "jpeg" else data, kind) as image:
        return image.mode, decode_s


def _refusal(error: ChiasmError) -> Refusal:
    return Refusal(error.code, error.message.removeprefix("Media item 0: "), error.hint)


def _shown(source: str) -> str:
    if source.startswith("data:"):
        source = source.partition(",")[0]
    elif _URL.match(source):
        source = re.sub(r"//[^/]*@", "//", re.split(r"[?#]", source, maxsplit=1)[0])
    return source if len(source) <= _MAX_SHOWN_CHARS else source[:_MAX_SHOWN_CHARS] + "..."
