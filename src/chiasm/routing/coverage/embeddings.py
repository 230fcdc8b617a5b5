"""Where embeddings are."""

from math import inf
from typing import TYPE_CHECKING, NamedTuple

from chiasm.cache.label import CacheLabel, Deletions
from chiasm.protocol.deletion import Deletion
from chiasm.protocol.media import EmbeddingHandle
from chiasm.routing.clock import Clock
from chiasm.routing.lru import Lru

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_MARGIN_S = 5.0
_MARGIN_SHARE = 0.1
"""A handle is not given out when less of its time is left: who gets it has a way to go before it is used."""
_RENEWAL_SHARE = 0.5
_MAX_PICTURES = 16_384


class Offered(NamedTuple):
    """An embedding that a worker offers."""

    handle: EmbeddingHandle
    producer: str


class _Picture:
    __slots__ = ("good_until_unix_s", "holders", "label", "offered", "renew_from_unix_s")

    def __init__(self, label: CacheLabel) -> None:
        self.label = label
        self.offered: Offered | None = None
        self.good_until_unix_s = inf
        self.renew_from_unix_s = inf
        self.holders: set[str] = set()


class EmbeddingIndex:
    """Remembers where embeddings are: on offer by an encoder, or in a worker's own cache.

    What is known under one `cache_salt` is not known under another. `begun_s` says when the work began that brought
    something to light: what has been deleted since is not remembered.

    Attributes:
        on_offered: Told of each offer that is remembered: identity, handle, worker, salt.
        on_held: Told of each holder: identity, worker, salt.
    """

    def __init__(self, clock: Clock, max_pictures: int = _MAX_PICTURES) -> None:
        self._clock = clock
        self._pictures: Lru[_Picture] = Lru(max_pictures)
        self._deletions = Deletions()
        self.on_offered: Callable[[str, EmbeddingHandle, str, str], None] = lambda *_: None
        self.on_held: Callable[[str, str, str], None] = lambda *_: None

    def __len__(self) -> int:
        return len(self._pictures)

    def offered(
        self,
        identity: str,
        handle: EmbeddingHandle,
        producer: str,
        cache_salt: str = "",
        begun_s: float = inf,
    ) -> None:
        """An encoder offers an embedding, and has it in its own cache."""
        picture = self._picture(identity, cache_salt, begun_s)
        if picture is None:
            return
        picture.offered = Offered(handle, producer)
        picture.holders.add(producer)
        picture.good_until_unix_s = picture.renew_from_unix_s = inf
        if handle.expires_at_s is not None:
            now_unix_s = self._clock.unix_s()
            left_s = max(handle.expires_at_s - now_unix_s, 0.0)
            picture.good_until_unix_s = handle.expires_at_s - min(_MAX_MARGIN_S, _MARGIN_SHARE * left_s)
            picture.renew_from_unix_s = now_unix_s + _RENEWAL_SHARE * left_s
        self.on_offered(identity, handle, producer, cache_salt)

    def held(self, identity: str, worker: str, cache_salt: str = "", begun_s: float = inf) -> None:
        """A worker has used an embedding, and therefore has it."""
        picture = self._picture(identity, cache_salt, begun_s)
        if picture is not None:
            picture.holders.add(worker)
            self.on_held(identity, worker, cache_salt)

    def handle(self, identity: str, cache_salt: str = "") -> EmbeddingHandle | None:
        """A handle that is good for a while yet."""
        picture = self._pictures.get(_key(identity, cache_salt))
        if picture is None or picture.offered is None or picture.good_until_unix_s < self._clock.unix_s():
            return None
        return picture.offered.handle

    def producer(self, identity: str, cache_salt: str = "") -> str:
        """Who made the embedding that was offered last, also when its handle is not given out any more; else empty."""
        picture = self._pictures.get(_key(identity, cache_salt))
        return picture.offered.producer if picture is not None and picture.offered is not None else ""

    def to_renew(self, identity: str, cache_salt: str = "") -> Offered | None:
        """An offer with half its time gone, once: whoever gets it sees to it that it is offered for longer."""
        picture = self._pictures.get(_key(identity, cache_salt))
        if picture is None or picture.offered is None:
            return None
        if not picture.renew_from_unix_s <= self._clock.unix_s() < picture.good_until_unix_s:
            return None
        picture.renew_from_unix_s = inf
        return picture.offered

    def holders(self, identity: str, cache_salt: str = "") -> frozenset[str]:
        """Workers that have it in their own caches."""
        picture = self._pictures.get(_key(identity, cache_salt))
        return frozenset(picture.holders) if picture is not None else frozenset()

    def forget(self, identity: str, cache_salt: str = "") -> None:
        """Never hand out again what is known of this picture: an embedding was bad."""
        self._pictures.pop(_key(identity, cache_salt))

    def forget_worker(self, worker: str) -> None:
        """It is gone, with its cache and with what it offered."""
        for picture in self._pictures.values():
            picture.holders.discard(worker)
            if picture.offered is not None and picture.offered.producer == worker:
                picture.offered = None

    def forget_all(self, deletion: Deletion) -> int:
        """Forget what a deletion covers; returns of how many pictures something was known."""
        self._deletions.add(deletion, self._clock.now_s())
        theirs = [key for key, picture in self._pictures.items() if picture.label.is_covered(deletion)]
        for key in theirs:
            self._pictures.pop(key)
        return len(theirs)

    def _picture(self, identity: str, cache_salt: str, begun_s: float) -> _Picture | None:
        key = _key(identity, cache_salt)
        picture = self._pictures.get(key)
        label = CacheLabel(cache_salt, frozenset({identity})) if picture is None else picture.label
        if self._deletions.cover(label, begun_s):
            return None
        if picture is None:
            picture = _Picture(label)
            self._pictures.put(key, picture)
        return picture


def _key(identity: str, cache_salt: str) -> str:
    return f"{identity}:{cache_salt}"
