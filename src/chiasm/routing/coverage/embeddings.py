"""Where embeddings are."""

from chiasm.protocol.media import EmbeddingHandle
from chiasm.routing.clock import Clock
from chiasm.routing.lru import Lru

_EXPIRY_MARGIN_S = 5.0
_MAX_PICTURES = 16_384


class _Picture:
    __slots__ = ("handle", "holders", "producer")

    def __init__(self) -> None:
        self.handle: EmbeddingHandle | None = None
        self.producer = ""
        self.holders: set[str] = set()


class EmbeddingIndex:
    """Remembers where embeddings are: on offer by an encoder, or in a worker's own cache.

    What is known under one `cache_salt` is not known under another.
    """

    def __init__(self, clock: Clock, max_pictures: int = _MAX_PICTURES) -> None:
        self._clock = clock
        self._pictures: Lru[_Picture] = Lru(max_pictures)

    def __len__(self) -> int:
        return len(self._pictures)

    def offered(self, identity: str, handle: EmbeddingHandle, producer: str, cache_salt: str = "") -> None:
        """An encoder offers an embedding, and has it in its own cache."""
        picture = self._picture(_key(identity, cache_salt))
        picture.handle, picture.producer = handle, producer
        picture.holders.add(producer)

    def held(self, identity: str, worker: str, cache_salt: str = "") -> None:
        """A worker has used an embedding, and therefore has it."""
        self._picture(_key(identity, cache_salt)).holders.add(worker)

    def handle(self, identity: str, cache_salt: str = "") -> EmbeddingHandle | None:
        """A handle that is good for a while yet."""
        picture = self._pictures.get(_key(identity, cache_salt))
        if picture is None or picture.handle is None:
            return None
        expires_at_s = picture.handle.expires_at_s
        if expires_at_s is not None and expires_at_s < self._clock.unix_s() + _EXPIRY_MARGIN_S:
            picture.handle = None
        return picture.handle

    def producer(self, identity: str, cache_salt: str = "") -> str:
        """Who made the embedding that is on offer; empty when none is."""
        picture = self._pictures.get(_key(identity, cache_salt))
        return picture.producer if picture is not None and picture.handle is not None else ""

    def holders(self, identity: str, cache_salt: str = "") -> frozenset[str]:
        """Workers that have it in their own caches."""
        picture = self._pictures.get(_key(identity, cache_salt))
        return frozenset(picture.holders) if picture is not None else frozenset()

    def forget(self, identity: str, cache_salt: str = "") -> None:
        """Never hand out again what is known of this picture: an embedding was bad, or it is to be deleted."""
        self._pictures.pop(_key(identity, cache_salt))

    def forget_worker(self, worker: str) -> None:
        """It is gone, with its cache and with what it offered."""
        for picture in self._pictures.values():
            picture.holders.discard(worker)
            if picture.producer == worker:
                picture.handle = None

    def _picture(self, key: str) -> _Picture:
        picture = self._pictures.get(key)
        if picture is None:
            picture = _Picture()
            self._pictures.put(key, picture)
        return picture


def _key(identity: str, cache_salt: str) -> str:
    return f"{identity}:{cache_salt}"
