"""Media from a request's reference to checked pixels: fetch, limits, identity, decoding, exact preparation.

Free of torch and of Hugging Face processors, so that the gateway and the command line can use all of it. The names
below are the room's interface for use on its own; each is loaded when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chiasm.media.audio.decode import decode_audio
    from chiasm.media.audio.header import AudioHeader, read_audio_header
    from chiasm.media.check import check_media
    from chiasm.media.decoding import PictureDecoder
    from chiasm.media.identity import content_identity
    from chiasm.media.ingest import AudioItem, MediaIngest
    from chiasm.media.picture.decode import decode_picture, decode_pixels
    from chiasm.media.picture.header import Header, read_header
    from chiasm.media.prepare.base import ImagePreparer
    from chiasm.media.prepare.registry import preparer_for
    from chiasm.media.reference import MediaReference
    from chiasm.media.sources import read_source
    from chiasm.media.spool import Spool
    from chiasm.media.verdict import MediaVerdict
    from chiasm.media.video.frames import sample_video
    from chiasm.media.video.sampling import SamplingRule
    from chiasm.protocol.media import MediaItem
    from chiasm.settings import MediaSettings

_HOMES = {
    "AudioHeader": "chiasm.media.audio.header",
    "AudioItem": "chiasm.media.ingest",
    "Header": "chiasm.media.picture.header",
    "ImagePreparer": "chiasm.media.prepare.base",
    "MediaIngest": "chiasm.media.ingest",
    "MediaItem": "chiasm.protocol.media",
    "MediaReference": "chiasm.media.reference",
    "MediaSettings": "chiasm.settings",
    "MediaVerdict": "chiasm.media.verdict",
    "PictureDecoder": "chiasm.media.decoding",
    "SamplingRule": "chiasm.media.video.sampling",
    "Spool": "chiasm.media.spool",
    "check_media": "chiasm.media.check",
    "content_identity": "chiasm.media.identity",
    "decode_audio": "chiasm.media.audio.decode",
    "decode_picture": "chiasm.media.picture.decode",
    "decode_pixels": "chiasm.media.picture.decode",
    "preparer_for": "chiasm.media.prepare.registry",
    "read_audio_header": "chiasm.media.audio.header",
    "read_header": "chiasm.media.picture.header",
    "read_source": "chiasm.media.sources",
    "sample_video": "chiasm.media.video.frames",
}
__all__ = [
    "AudioHeader", "AudioItem", "Header", "ImagePreparer", "MediaIngest", "MediaItem", "MediaReference",
    "MediaSettings", "MediaVerdict", "PictureDecoder", "SamplingRule", "Spool", "check_media", "content_identity",
    "decode_audio", "decode_picture", "decode_pixels", "preparer_for", "read_audio_header", "read_header",
    "read_source", "sample_video",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'chiasm.media' has no attribute {name!r}")
