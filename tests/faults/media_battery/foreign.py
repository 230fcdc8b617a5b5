"""What is no picture at all, and what cannot be told from noise."""

import gzip
import io
import random
import zipfile

from tests.faults.media_battery.outcomes import BROKEN, FOREIGN
from tests.unit.media.pictures import encode, gradient

FOREIGN_PICTURES = {
    name: (FOREIGN, lambda data=data: data)
    for name, data in {
        "postscript": b"%!PS-Adobe-3.0\n/x { x } def x\n" + bytes(100),
        "eps": b"\xc5\xd0\xd3\xc6" + bytes(100),
        "eps in text": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n" + bytes(100),
        "wmf": b"\xd7\xcd\xc6\x9a" + bytes(100),
        "emf": b"\1\0\0\0" + bytes(100),
        "svg": b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
        "svg of entities": b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b 'b'>]><svg>&b;</svg>" + bytes(100),
        "pdf": b"%PDF-1.7\n" + bytes(100),
        "html": b"<!doctype html><img src=x>" + bytes(100),
        "json": b'{"error": "not found"}' + bytes(20),
        "text": b"there is no such picture" * 9,
        "gzip of a picture": gzip.compress(encode(gradient(), "png")),
        "ico": b"\0\0\1\0" + bytes(100),
        "icns": b"icns" + bytes(100),
        "psd": b"8BPS\0\1" + bytes(100),
        "jpeg 2000": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(100),
        "jpeg xl": b"\xff\x0a" + bytes(100),
        "heic": b"\0\0\0\x18ftypheic" + bytes(100),
        "ppm": b"P6 24 16 255\n" + bytes(1152),
        "sgi": b"\x01\xda" + bytes(600),
        "pcx": b"\x0a\5\1\x08" + bytes(200),
        "tga": b"\0\0\2" + bytes(200),
        "fli": b"\0\0\0\0\x11\xaf" + bytes(200),
        "hdf5": b"\x89HDF\r\n\x1a\n" + bytes(200),
        "big tiff": b"II+\0\x08\0\0\0" + bytes(200),
        "mp3": b"ID3\4" + bytes(100),
        "wave": b"RIFF\x24\0\0\0WAVEfmt " + bytes(100),
        "avi": b"RIFF\x24\0\0\0AVI LIST" + bytes(100),
        "executable": b"\x7fELF\2\1\1" + bytes(100),
        "nothing but zeros": bytes(2**20),
        "random": random.Random(5).randbytes(2**16),
        "a picture after one byte": b"\n" + encode(gradient(), "png"),
    }.items()
}


def zipped():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("picture.png", bytes(2**20))
    return buffer.getvalue()


FOREIGN_PICTURES |= {
    "zip": (FOREIGN, zipped),
    "empty": (BROKEN, lambda: b""),
    **{
        f"{magic!r} and noise": (BROKEN, lambda magic=magic: magic + random.Random(7).randbytes(4096))
        for magic in (
            b"\xff\xd8\xff",
            b"\x89PNG\r\n\x1a\n",
            b"GIF89a",
            b"BM",
            b"II*\0",
            b"MM\0*",
            b"RIFF\xff\0\0\0WEBP",
        )
    },
}
