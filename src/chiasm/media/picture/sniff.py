"""The format of a picture from its first bytes. Names and labels that came with it are not asked."""

from PIL import features

from chiasm.errors import UnsupportedMediaError
from chiasm.media.picture.bytes import ShortDataError

MIN_SNIFF_BYTES = 32
"""With fewer bytes a format may not be recognised yet."""

_ALLOWED = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
)
# Named in the refusal, so that a caller learns what was really sent.
_REFUSED = (
    (b"%!PS", "PostScript"),
    (b"\xc5\xd0\xd3\xc6", "EPS"),
    (b"%PDF", "PDF"),
    (b"\xd7\xcd\xc6\x9a", "WMF"),
    (b"\x01\0\0\0", "EMF"),
    (b"\0\0\x01\0", "ICO"),
    (b"8BPS", "PSD"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cJXL ", "JPEG XL"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"\x1a\x45\xdf\xa3", "Matroska or WebM video"),
    (b"ID3", "MP3 sound"),
    (b"\xff\xfb", "MP3 sound"),
    (b"\xff\xf3", "MP3 sound"),
    (b"fLaC", "FLAC sound"),
    (b"OggS", "Ogg sound or video"),
    (b"PK\x03\x04", "ZIP"),
    (b"\x1f\x8b", "gzip"),
)
_HEIC_BRANDS = (b"heic", b"heix", b"mif1")
_MARKUP = ((b"<svg", "SVG"), (b"<!doctype html", "HTML"), (b"<html", "HTML"), (b"<?xml", "XML or SVG"), (b"{", "JSON"))
_HINT = "Send JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF"
_HAS_AVIF = bool(features.check("avif"))


def sniff(data: bytes | bytearray) -> str:
    """Return "jpeg", "png", "webp", "gif", "bmp", "tiff" or "avif".

    Raises:
        UnsupportedMediaError: Anything else; the message names the format where it is known.
        ShortDataError: No bytes at all.
    """
    if not data:
        raise ShortDataError
    head = bytes(data[:MIN_SNIFF_BYTES])
    for magic, name in _ALLOWED:
        if head.startswith(magic):
            return name
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "webp"
    if is_avif(head):
        if _HAS_AVIF:
            return "avif"
        raise UnsupportedMediaError("The data is AVIF, which this installation cannot decode", hint=_HINT)
    raise UnsupportedMediaError(f"The data is {_name(head, data)}, not a picture of a supported format", hint=_HINT)


def is_avif(data: bytes | bytearray) -> bool:
    """Whether the first bytes are those of AVIF, decodable here or not."""
    head = bytes(data[:MIN_SNIFF_BYTES])
    brands = [head[8:12], *(head[at : at + 4] for at in range(16, len(head), 4))]
    return head[4:8] == b"ftyp" and (b"avif" in brands or b"avis" in brands)


def is_boxed_picture(data: bytes | bytearray) -> bool:
    """Whether the first bytes are those of a picture, AVIF or HEIC, in the container that videos have, too."""
    return is_avif(data) or (data[4:8] == b"ftyp" and bytes(data[8:12]) in _HEIC_BRANDS)


def _name(head: bytes, data: bytes | bytearray) -> str:
    for magic, name in _REFUSED:
        if head.startswith(magic):
            return name
    if head[4:8] == b"ftyp":
        return "HEIC" if head[8:12] in (*_HEIC_BRANDS, b"msf1") else "MP4 or QuickTime video"
    if head.startswith(b"RIFF"):
        return {b"WAVE": "WAVE sound", b"AVI ": "AVI video"}.get(head[8:12], "of an unknown format")
    text = bytes(data[:256]).removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return next((name for magic, name in _MARKUP if text.startswith(magic)), "of an unknown format")
