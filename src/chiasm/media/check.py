"""Would the gateway take this? One file or URL through the gateway's own ingest, then the worker's own decoders."""

import asyncio
import re
import time
from pathlib import Path
from typing import Literal

import msgspec
import pybase64

from chiasm.errors import DeadlineExceededError, MediaError, TransferError
from chiasm.media.audio.container import sniff_audio
from chiasm.media.audio.decode import decode_audio
from chiasm.media.ingest import MediaIngest
from chiasm.media.picture.codecs import codec_border, open_picture
from chiasm.media.picture.decode import decode_picture
from chiasm.media.picture.header import read_header
from chiasm.media.picture.jpeg import without_exif
from chiasm.media.prepare.base import ImagePreparer
from chiasm.media.prepare.items import plan_of
from chiasm.media.reference import MediaReference
from chiasm.media.sources import read_source
from chiasm.media.verdict import AudioReport, Facts, MediaVerdict, PictureFacts, VideoReport, accepted, refused
from chiasm.media.video.container import SNIFF_BYTES, sniff_video
from chiasm.media.video.frames import decoded_frames
from chiasm.media.video.header import read_video_header
from chiasm.protocol.media import EmbeddingHandle, LateSource, MediaItem, VideoSample
from chiasm.settings import MediaSettings

Kind = Literal["image", "video", "audio"]
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_VIDEO_NAMES = (".mp4", ".m4v", ".mov", ".webm", ".mkv")
_AUDIO_NAMES = (".wav", ".mp3", ".flac", ".ogg", ".oga", ".opus")
_MAX_SHOWN_CHARS = 200
_SNIFF_CHARS = 44
"""Of base64: they stand for `SNIFF_BYTES`, and one more."""


class _Found(msgspec.Struct, frozen=True):
    """Bytes, what their headers say, and which frames of a video are meant."""

    data: bytes
    facts: Facts
    sample: VideoSample | None = None


async def check_media(
    source: str,
    settings: MediaSettings,
    preparer: ImagePreparer | None = None,
    *,
    kind: Kind | None = None,
    num_frames: int | None = None,
    deadline_s: float = 120.0,
) -> MediaVerdict:
    """Put one medium through all rules, then decode it. Nothing is raised for one that is refused.

    Args:
        source: A URL when it begins with a scheme, otherwise the path of a file, which may lie outside of
            `allowed_root`: that setting is about what callers of a server may name.
        settings: The rules.
        preparer: Of the model that should take it; without one, visual tokens are not counted.
        kind: As what a request would send it. By default the first bytes decide, of a download the name in its URL.
        num_frames: How many frames are looked at of a video; by default what the model has, or 2 a second.
        deadline_s: As a request's; decoding comes after it.
    """
    shown, facts = _shown(source), None
    url, is_path = _url(source), _URL.match(source) is None
    rules = msgspec.structs.replace(settings, allowed_root="/") if is_path else settings
    reference = MediaReference(kind or _kind(source), url, "", num_frames=num_frames)
    try:
        ingest = MediaIngest(rules, preparer)
        try:
            found = await _found(ingest, reference, settings, preparer, deadline_s)
        finally:
            await ingest.aclose()
        facts = found.facts
        facts = await asyncio.to_thread(_decoded, found, settings)
    except (MediaError, TransferError, DeadlineExceededError) as error:
        return refused(shown, error, facts, settings)
    return accepted(shown, facts, settings)


async def _found(
    ingest: MediaIngest,
    reference: MediaReference,
    settings: MediaSettings,
    preparer: ImagePreparer | None,
    deadline_s: float,
) -> _Found:
    if reference.kind == "audio" and preparer is None:
        heard = await ingest.listen(reference, deadline_s)
        return _Found(heard.data, AudioReport.of(heard.header, len(heard.data), heard.identity))
    [item] = await ingest.collect([reference], deadline_s)
    assert not isinstance(item.source, EmbeddingHandle | LateSource)  # ingest makes none
    data = await asyncio.to_thread(read_source, item.source, settings)
    if item.video is None:
        return _Found(data, _picture(item, data, preparer))
    return _Found(data, _video(item, item.video, data, preparer), item.video)


def _picture(item: MediaItem, data: bytes, preparer: ImagePreparer | None) -> PictureFacts:
    plan = None if preparer is None else plan_of(preparer, item)
    return PictureFacts(
        format=item.format,
        width=item.width,
        height=item.height,
        orientation=read_header(data).orientation,
        is_animated=item.is_animated,
        num_bytes=len(data),
        identity=item.identity,
        num_tiles=None if plan is None else plan.num_tiles,
        num_visual_tokens=None if plan is None else plan.num_embeddings,
        num_prompt_tokens=None if plan is None else plan.num_prompt_tokens,
    )


def _video(item: MediaItem, sample: VideoSample, data: bytes, preparer: ImagePreparer | None) -> VideoReport:
    plan = None if preparer is None else plan_of(preparer, item)
    return VideoReport(
        container=item.format,
        width=item.width,
        height=item.height,
        num_frames=sample.num_frames,
        average_fps=sample.fps,
        duration_s=sample.num_frames / sample.fps if sample.fps else 0.0,
        num_sampled=len(sample.indices),
        num_bytes=len(data),
        identity=item.identity,
        num_visual_tokens=None if plan is None else plan.num_embeddings,
        num_prompt_tokens=None if plan is None else plan.num_prompt_tokens,
    )


def _decoded(found: _Found, settings: MediaSettings) -> Facts:
    """Decode as a worker does, and add what shows only then and how long it took."""
    facts, data, started = found.facts, found.data, time.perf_counter()
    more = {}
    if isinstance(facts, PictureFacts):
        decode_picture(data, settings)
    elif isinstance(facts, AudioReport):
        decode_audio(data, facts.rate, settings)
    else:
        assert found.sample is not None
        header = read_video_header(data, settings)
        for _ in decoded_frames(data, header, found.sample.indices, settings.video_threads):
            pass
        more["codec"] = header.codec
    decode_s = time.perf_counter() - started
    if isinstance(facts, PictureFacts):
        more["mode"] = _mode(data)
    return msgspec.structs.replace(facts, decode_s=decode_s, **more)


def _mode(data: bytes) -> str:
    kind = read_header(data).format
    with codec_border(kind), open_picture(without_exif(data) if kind == "jpeg" else data, kind) as image:
        return image.mode


def _url(source: str) -> str:
    return source if _URL.match(source) else Path(source).absolute().as_uri()


def _kind(source: str) -> Kind:
    head = _head(source)
    if head is not None:
        return "audio" if sniff_audio(head) else "video" if sniff_video(head) else "image"
    name = re.split(r"[?#]", source, maxsplit=1)[0].lower()
    return "video" if name.endswith(_VIDEO_NAMES) else "audio" if name.endswith(_AUDIO_NAMES) else "image"


def _head(source: str) -> bytes | None:
    """First bytes of a file or a data URL; None of other URLs, and of what cannot be read: its refusal says why."""
    try:
        if source.startswith("data:"):
            return pybase64.b64decode(source.partition(",")[2][:_SNIFF_CHARS])
        if _URL.match(source) is None and Path(source).is_file():  # a pipe would have nothing to say, and wait
            with Path(source).open("rb") as file:
                return file.read(SNIFF_BYTES)
    except (OSError, ValueError):
        return None
    return None


def _shown(source: str) -> str:
    if source.startswith("data:"):
        source = source.partition(",")[0]
    elif _URL.match(source):
        source = re.sub(r"//[^/]*@", "//", re.split(r"[?#]", source, maxsplit=1)[0])
    return source if len(source) <= _MAX_SHOWN_CHARS else source[:_MAX_SHOWN_CHARS] + "..."
