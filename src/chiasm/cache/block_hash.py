"""Identity of prompt prefixes: a chain of hashes over blocks of tokens, with the media's identity mixed in.

Placeholder tokens are the same for every picture, so token ids alone would let one picture's KV answer for another.
Each block that holds embedding rows also hashes whose rows they are and which of them.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chiasm.cache.label import CacheLabel

BLOCK_TOKENS = 16


@dataclass(frozen=True)
class MediaSpan:
    """`num_tokens` prompt tokens from `offset` on that belong to the medium with this embedding key."""

    key: str
    offset: int
    num_tokens: int

    @property
    def identity(self) -> str:
        """Of the medium."""
        return self.key.partition(":")[0]


def block_hashes(token_ids: NDArray[np.int64], media: Sequence[MediaSpan], namespace: str) -> list[bytes]:
    """One 32-byte hash per full block of `BLOCK_TOKENS`, each covering everything before it.

    Args:
        token_ids: Prompt [num_tokens].
        media: Spans in prompt order, not overlapping.
        namespace: Whatever must never share KV: model and adapter revision, tenant.
    """
    previous = hashlib.sha256(namespace.encode()).digest()
    hashes = []
    for start in range(0, len(token_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        digest = hashlib.sha256(previous)
        digest.update(token_ids[start : start + BLOCK_TOKENS].tobytes())
        for span in media:
            if span.offset < start + BLOCK_TOKENS and span.offset + span.num_tokens > start:
                digest.update(f"|{span.key}@{span.offset - start}".encode())
        previous = digest.digest()
        hashes.append(previous)
    return hashes


def block_labels(num_blocks: int, media: Sequence[MediaSpan], cache_salt: str) -> list[CacheLabel]:
    """Labels of a prompt's blocks. Keys and values follow from all before them: a block has the media up to its end."""
    labels, label = [], CacheLabel(cache_salt)
    waiting = iter(media)
    span = next(waiting, None)
    for end in range(BLOCK_TOKENS, BLOCK_TOKENS * num_blocks + 1, BLOCK_TOKENS):
        while span is not None and span.offset < end:
            label = CacheLabel(cache_salt, label.media | {span.identity})
            span = next(waiting, None)
        labels.append(label)
    return labels
