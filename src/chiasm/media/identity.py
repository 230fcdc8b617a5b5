"""The name of a medium everywhere: in caches, in routing, in handles."""

import hashlib


def content_identity(data: bytes) -> str:
    """Return the sha256 hex of the encoded bytes, whatever URL or label they came with."""
    return hashlib.sha256(data).hexdigest()
