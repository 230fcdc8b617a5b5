"""BMP headers."""

from chiasm.errors import MediaDecodeError, UnsupportedMediaError
from chiasm.media.picture.bytes import numbers

_CORE_HEADER_BYTES = 12
_RUN_LENGTH = (1, 2)


def read_bmp(data: bytes | bytearray) -> tuple[int, int]:
    """Return width and height."""
    (header_bytes,) = numbers("<I", data, 14)
    if header_bytes == _CORE_HEADER_BYTES:
        width, height = numbers("<HH", data, 18)
        return width, height
    if not 40 <= header_bytes <= 124:
        raise MediaDecodeError("The bmp data has an unknown header")
    width, height = numbers("<ii", data, 18)
    (compression,) = numbers("<I", data, 30)
    if compression in _RUN_LENGTH:
        # Decoded by a loop in Python, which a crafted file keeps busy for seconds.
        raise UnsupportedMediaError("Run-length encoded BMP is not supported", hint="Send it as PNG")
    return width, abs(height)  # negative height: rows from the top
