"""Media from a request's reference to checked pixels: fetch, limits, identity, decoding, exact preparation.

Free of torch and of Hugging Face processors. The names below are the room's interface for use on its own; each is
loaded when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chiasm.media.audio.decode import decode_audio
    from chiasm.media.audio.header import AudioHeader, read_audio_header
    from chiasm.media.check import check_media
    from chiasm.media.decoding import PictureDecoder
    from chiasm.media.identity import content_identity
    from chiasm.media.ingest import AudioItem, MediaIngest, MediaReference
    from chiasm.media.picture.decode import decode_picture, decode_pixels
    from chiasm.media.picture.header import Header, read_header
    from chiasm.media.prepare.base import ImagePreparer
    from chiasm.media.prepare.registry import preparer_for
    from chiasm.media.sources import read_source
    from chiasm.media.spool import Spool
    from chiasm.media.verdict import MediaVerdict
    from chiasm.media.video.frames import sample_video
    from chiasm.media.video.sampling import SamplingRule
    from chiasm.protocol.media import MediaItem
    from chiasm.settings import MediaSettings

_HOMES = {
    "chiasm.media.audio.decode": ("decode_audio",),
    "chiasm.media.audio.header": ("AudioHeader", "read_audio_header"),
    "chiasm.media.check": ("check_media",),
    "chiasm.media.decoding": ("PictureDecoder",),
    "chiasm.media.identity": ("content_identity",),
    "chiasm.media.ingest": ("AudioItem", "MediaIngest", "MediaReference"),
    "chiasm.media.picture.decode": ("decode_picture", "decode_pixels"),
    "chiasm.media.picture.header": ("Header", "read_header"),
    "chiasm.media.prepare.base": ("ImagePreparer",),
    "chiasm.media.prepare.registry": ("preparer_for",),
    "chiasm.media.sources": ("read_source",),
    "chiasm.media.spool": ("Spool",),
    "chiasm.media.verdict": ("MediaVerdict",),
    "chiasm.media.video.frames": ("sample_video",),
    "chiasm.media.video.sampling": ("SamplingRule",),
    "chiasm.protocol.media": ("MediaItem",),
    "chiasm.settings": ("MediaSettings",),
}
__all__ = [
    "AudioHeader", "AudioItem", "Header", "ImagePreparer", "MediaIngest", "MediaItem", "MediaReference",
    "MediaSettings", "MediaVerdict", "PictureDecoder", "SamplingRule", "Spool", "check_media", "content_identity",
    "decode_audio", "decode_picture", "decode_pixels", "preparer_for", "read_audio_header", "read_header",
    "read_source", "sample_video",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'chiasm.media' has no attribute {name!r}")
    return getattr(import_module(home), name)
