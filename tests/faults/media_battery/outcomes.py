"""What becomes of a file, as the battery's tables state it."""

import struct

BROKEN = "media_undecodable"
LARGE = "media_too_large"
FOREIGN = "media_unsupported"


def taken(width=24, height=16):
    """Accepted, and of this upright size."""
    return f"{width}x{height}"


def lying(data, at, layout, *numbers):
    """Data in which some numbers are written over."""
    return data[:at] + struct.pack(layout, *numbers) + data[at + struct.calcsize(layout) :]


def inserted(data, at, more):
    return data[:at] + more + data[at:]
