"""The pictures of one request: their pixels, their embeddings, and what became of each."""

from collections.abc import Collection, Mapping

import msgspec

from chiasm.protocol.media import EmbeddingHandle, LateSource, MediaItem
from chiasm.routing.coverage.embeddings import EmbeddingIndex
from chiasm.routing.plan import Fate
from chiasm.routing.view import ItemView


class Pictures:
    """Distinct pictures by identity. Whoever sent the request keeps their bytes until there is a first token."""

    def __init__(self, items: Collection[MediaItem], index: EmbeddingIndex, cache_salt: str) -> None:
        self._items = tuple(items)
        self._index = index
        self.cache_salt = cache_salt
        self._own: dict[str, EmbeddingHandle] = {}
        self._bad: set[str] = set()
        self.positions: dict[str, tuple[int, ...]] = {}
        for position, item in enumerate(items):
            self.positions[item.identity] = (*self.positions.get(item.identity, ()), position)

    @property
    def first_positions(self) -> dict[str, int]:
        """Where each picture stands first."""
        return {identity: positions[0] for identity, positions in self.positions.items()}

    def views(self) -> tuple[ItemView, ...]:
        """The pictures as policies see them."""
        return tuple(
            ItemView(
                identity=identity,
                positions=positions,
                num_pixels=self.item(identity).width * self.item(identity).height,
                has_handle=self.handle(identity) is not None,
                holders=self._index.holders(identity, self.cache_salt),
                has_pixels=self.has_pixels(identity),
            )
            for identity, positions in self.positions.items()
        )

    def item(self, identity: str) -> MediaItem:
        """The picture as it came."""
        return self._items[self.positions[identity][0]]

    def has_pixels(self, identity: str) -> bool:
        """Whether it can be encoded, and not only be referred to."""
        return not isinstance(self.item(identity).source, EmbeddingHandle)

    def handle(self, identity: str) -> EmbeddingHandle | None:
        """An embedding that is good as far as is known."""
        own = self._own.get(identity)
        if own is not None:
            return own
        source = self.item(identity).source
        if isinstance(source, EmbeddingHandle):
            return None if identity in self._bad else source
        return self._index.handle(identity, self.cache_salt)

    def deliver(self, handles: Mapping[str, EmbeddingHandle]) -> None:
        """Take embeddings that were made for this request."""
        self._own.update({identity: handle for identity, handle in handles.items() if identity in self.positions})

    def forget(self, identities: Collection[str]) -> set[str]:
        """Embeddings turned out bad: use them no more, here or for anyone. Returns who made them."""
        producers = {self._index.producer(identity, self.cache_salt) for identity in identities} - {""}
        for identity in identities:
            self._bad.add(identity)
            self._own.pop(identity, None)
            self._index.forget(identity, self.cache_salt)
        return producers

    def are_mixed(self, fates: Mapping[str, Fate]) -> bool:
        """Whether some would go as handles and others as they are."""
        as_handles = {fates[one] != "local" and self.handle(one) is not None for one in self.positions}
        return len(as_handles) > 1

    def sources(
        self, fates: Mapping[str, Fate], *, as_metadata: bool, late: Collection[str] = ()
    ) -> tuple[tuple[MediaItem, ...], dict[str, int]]:
        """The items to send, in the request's order, and which of them go as handles (with their first positions).

        The handles of `late` pictures follow.
        """
        sent: dict[str, int] = {}
        items: list[MediaItem] = []
        for position, item in enumerate(self._items):
            handle = None if fates[item.identity] == "local" else self.handle(item.identity)
            if item.identity in late:
                sent.setdefault(item.identity, position)
                item = msgspec.structs.replace(item, source=LateSource())
            elif handle is not None and (as_metadata or not self.has_pixels(item.identity)):
                sent.setdefault(item.identity, position)
                item = msgspec.structs.replace(item, source=handle)
            items.append(item)
        return tuple(items), sent
