"""What this gateway learns about contents, told to others, and what they tell: hints, which may be wrong or be lost."""

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from chiasm.protocol.media import EmbeddingHandle
from chiasm.routing.coverage.embeddings import EmbeddingIndex
from chiasm.routing.coverage.prefixes import Prefix, PrefixOwners
from chiasm.routing.quarantine import Quarantine

_MAX_PENDING = 1024
_MAX_PREFIXES = 8
_MAX_ITEMS = 64


class ServedNote(msgspec.Struct, frozen=True, tag="served"):
    """A worker has computed these starts of a prompt."""

    worker: str
    prefixes: tuple[Prefix, ...]


class OfferedNote(msgspec.Struct, frozen=True, tag="offered"):
    """A worker offers an embedding."""

    worker: str
    identity: str
    cache_salt: str
    handle: EmbeddingHandle


class HeldNote(msgspec.Struct, frozen=True, tag="held"):
    """A worker has an embedding in its own cache."""

    worker: str
    identity: str
    cache_salt: str


class DiedNote(msgspec.Struct, frozen=True, tag="died"):
    """A worker died while it had this work."""

    worker: str
    work: tuple[str, ...]


class ClearedNote(msgspec.Struct, frozen=True, tag="cleared"):
    """Work that was suspected was done."""

    work: tuple[str, ...]


Note = ServedNote | OfferedNote | HeldNote | DiedNote | ClearedNote
_decode_list = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode = msgspec.msgpack.Decoder(Note).decode
_encode = msgspec.msgpack.Encoder().encode


class ContentNotes:
    """Listens to what the router remembers. Bounded: of what is not fetched in time, the oldest goes.

    Only workers that other gateways know, too, are worth a word; `is_shared` says whether one is. What workers died of
    is told, too, so that it is not tried at every gateway.

    Attributes:
        num_skipped: Notes of others that this version does not understand.
    """

    def __init__(
        self,
        embeddings: EmbeddingIndex,
        prefixes: PrefixOwners,
        quarantine: Quarantine,
        is_shared: Callable[[str], bool],
    ) -> None:
        self._embeddings = embeddings
        self._quarantine = quarantine
        self._prefixes = prefixes
        self._is_shared = is_shared
        self._pending: deque[Note] = deque(maxlen=_MAX_PENDING)
        self._is_learning = False
        self.num_skipped = 0
        prefixes.on_served = self._served
        embeddings.on_offered = self._offered
        embeddings.on_held = self._held
        quarantine.on_died = self._died
        quarantine.on_served = self._cleared

    def take(self, max_notes: int, max_bytes: int) -> bytes | None:
        """The oldest notes, encoded; None for none. They are not kept, nor is one that is larger than `max_bytes`."""
        taken: list[msgspec.Raw] = []
        while self._pending and len(taken) < max_notes:
            note = _encode(self._pending[0])
            if len(note) <= max_bytes:
                max_bytes -= len(note)
                taken.append(msgspec.Raw(note))
            elif taken:
                break
            self._pending.popleft()
        return _encode(taken) if taken else None

    def drop(self) -> None:
        """Forget what was not taken yet."""
        self._pending.clear()

    def learn(self, payload: bytes) -> int:
        """Remember what another gateway's notes say about workers that are shared; returns of how many that was so.

        Notes that cannot be understood say nothing: those of a newer gateway may stand beside others that can.
        """
        ours = [note for note in self._read(payload) if isinstance(note, ClearedNote) or self._is_shared(note.worker)]
        self._is_learning = True
        try:
            for note in ours:
                self._remember(note)
        finally:
            self._is_learning = False
        return len(ours)

    def _read(self, payload: bytes) -> list[Note]:
        notes: list[Note] = []
        try:
            packed = _decode_list(payload)
        except (msgspec.DecodeError, RecursionError):
            packed = []
            self.num_skipped += 1
        for one in packed:
            try:
                notes.append(_decode(one))
            except (msgspec.DecodeError, RecursionError):
                self.num_skipped += 1
        return notes

    def _remember(self, note: Note) -> None:
        if isinstance(note, ServedNote):
            self._prefixes.served(note.prefixes, note.worker)
        elif isinstance(note, OfferedNote):
            self._embeddings.offered(note.identity, note.handle, note.worker, note.cache_salt)
        elif isinstance(note, DiedNote):
            self._quarantine.told_died(note.work, note.worker)
        elif isinstance(note, ClearedNote):
            self._quarantine.told_served(note.work)
        else:
            self._embeddings.held(note.identity, note.worker, note.cache_salt)

    def _served(self, prefixes: Sequence[Prefix], worker: str) -> None:
        if prefixes and self._is_news_of(worker):
            self._pending.append(ServedNote(worker, _telling(prefixes)))

    def _offered(self, identity: str, handle: EmbeddingHandle, worker: str, cache_salt: str) -> None:
        if self._is_news_of(worker):
            self._pending.append(OfferedNote(worker, identity, cache_salt, handle))

    def _held(self, identity: str, worker: str, cache_salt: str) -> None:
        if self._is_news_of(worker):
            self._pending.append(HeldNote(worker, identity, cache_salt))

    def _died(self, work: tuple[str, ...], worker: str) -> None:
        if self._is_shared(worker):
            self._pending.append(DiedNote(worker, work))

    def _cleared(self, work: tuple[str, ...]) -> None:
        self._pending.append(ClearedNote(work))

    def _is_news_of(self, worker: str) -> bool:
        return not self._is_learning and self._is_shared(worker)


def _telling(prefixes: Sequence[Prefix]) -> tuple[Prefix, ...]:
    """The starts at which other questions are most likely to part: behind a picture, and the longest ones."""
    small = [one for one in prefixes if len(one.items) <= _MAX_ITEMS]
    behind = [one for before, one in zip([None, *small], small, strict=False) if before and one.items != before.items]
    chosen = {one.key: one for one in (*behind[:_MAX_PREFIXES], *small[-_MAX_PREFIXES:])}
    return tuple(one for one in small if one.key in chosen)
