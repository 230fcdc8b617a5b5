import pytest

from chiasm.errors import UnsupportedMediaError
from chiasm.media.picture import sniff as sniff_module
from chiasm.media.picture.sniff import sniff
from tests.unit.media.pictures import FORMATS, encode, gradient


@pytest.mark.parametrize("kind", FORMATS)
def test_bytes_decide(kind):
    assert sniff(encode(gradient(), kind)) == kind


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "PostScript"),
        (b"\xc5\xd0\xd3\xc6" + bytes(40), "EPS"),
        (b"\xd7\xcd\xc6\x9a" + bytes(40), "WMF"),
        (b"\x01\0\0\0" + bytes(36) + b" EMF", "EMF"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        (b"\xef\xbb\xbf \n<SVG></SVG>" + bytes(20), "SVG"),
        (b"<?xml version='1.0'?><svg/>", "XML or SVG"),
        (b"<!DOCTYPE html><html></html>", "HTML"),
        (b"  <html>", "HTML"),
        (b'{"error": "not found"}', "JSON"),
        (b"%PDF-1.7" + bytes(30), "PDF"),
        (b"\0\0\1\0\1\0" + bytes(30), "ICO"),
        (b"8BPS" + bytes(30), "PSD"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIC"),
        (b"\0\0\0\x18ftypisom\0\0\0\0isomavc1", "MP4"),
        (b"RIFF\0\0\0\0AVI LIST" + bytes(20), "AVI"),
        (b"\x1a\x45\xdf\xa3" + bytes(30), "WebM"),
        (b"\x1f\x8b\x08" + bytes(30), "gzip"),
        (b"MM\0+\0\x08\0\0" + bytes(30), "unknown"),  # TIFF with 64-bit offsets
        (b"hello, world", "unknown"),
    ],
)
def test_all_else_is_refused_by_name(data, name):
    with pytest.raises(UnsupportedMediaError, match=name) as caught:
        sniff(data)
    assert "hello" not in str(caught.value)


def test_without_the_library_avif_is_refused(monkeypatch):
    monkeypatch.setattr(sniff_module, "_HAS_AVIF", False)
    with pytest.raises(UnsupportedMediaError, match="installation"):
        sniff(encode(gradient(), "avif"))
