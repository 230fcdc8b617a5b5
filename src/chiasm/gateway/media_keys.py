"""Names of media for receipts: they tell which were the same, and nothing of what they were."""

from collections.abc import Iterable
from hashlib import blake2b
from secrets import token_bytes

from chiasm.observability.receipt import MediaSize
from chiasm.protocol.media import MediaItem

_NUM_BYTES = 8


class MediaKeys:
    """Hashes identities with a secret that is made anew in each process and written down nowhere."""

    def __init__(self) -> None:
        self._secret = token_bytes(32)

    def sizes(self, items: Iterable[MediaItem]) -> tuple[MediaSize, ...]:
        """What a receipt says of media."""
        return tuple(MediaSize(self._key(item.identity), _num_pixels(item)) for item in items)

    def _key(self, identity: str) -> str:
        return blake2b(identity.encode(), key=self._secret, digest_size=_NUM_BYTES).hexdigest()


def _num_pixels(item: MediaItem) -> int:
    num_frames = len(item.video.indices) if item.video is not None else 1
    return item.width * item.height * num_frames
