"""Starts of prompts, recognised by content and without a tokenizer, and who computed them last."""

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from math import inf
from typing import NamedTuple

import msgspec

from chiasm.cache.label import CacheLabel, Deletions
from chiasm.protocol.deletion import Deletion
from chiasm.protocol.generation import ChatPrompt, GenerateRequest, ItemPart, TextPart, TextPrompt
from chiasm.routing.lru import Lru

_CHUNK_CHARS = 512
_CHUNK_TOKENS = 128
_CHARS_PER_TOKEN = 4
_MAX_PREFIXES = 65_536
_MAX_OWNERS = 8


class Prefix(msgspec.Struct, frozen=True):
    """A start of a prompt: a hash of all in it, characters of its text, identities of its pictures, and its scope."""

    key: str
    num_chars: int
    items: tuple[str, ...]
    cache_salt: str = ""


def prefixes_of(request: GenerateRequest) -> list[Prefix]:
    """All starts of a prompt that may be recognised, shortest first, without knowing the model's tokens.

    Each key covers everything before it: roles, text, and pictures by the identity of their bytes, in order. Keys of
    requests with different salts or adapters have nothing in common.
    """
    found: list[Prefix] = []
    chain, num_chars = hashlib.sha256(request.cache_salt.encode()).digest(), 0
    if request.adapter is not None:
        chain = hashlib.sha256(chain + request.adapter.revision.encode()).digest()
    items: tuple[str, ...] = ()
    for unit, size, item in _units(request):
        chain = hashlib.sha256(chain + unit).digest()
        num_chars += size
        items = (*items, item) if item is not None else items
        found.append(Prefix(chain.hex(), num_chars, items, request.cache_salt))
    return found


def _units(request: GenerateRequest) -> Iterator[tuple[bytes, int, str | None]]:
    """Bytes to hash, characters of text, and a picture's identity, for each piece of the prompt in order."""
    prompt = request.prompt
    if isinstance(prompt, TextPrompt):
        yield from _text_units(prompt.text)
    elif isinstance(prompt, ChatPrompt):
        for message in prompt.messages:
            yield b"role:" + message.role.encode(), 0, None
            for part in message.parts:
                if isinstance(part, TextPart):
                    yield from _text_units(part.text)
                else:
                    assert isinstance(part, ItemPart)
                    identity = request.items[part.item].identity
                    yield b"item:" + identity.encode(), 0, identity
    else:
        for start in range(0, len(prompt.token_ids), _CHUNK_TOKENS):
            chunk = prompt.token_ids[start : start + _CHUNK_TOKENS]
            yield b"tokens:" + repr(chunk).encode(), len(chunk) * _CHARS_PER_TOKEN, None


def _text_units(text: str) -> Iterator[tuple[bytes, int, str | None]]:
    for start in range(0, len(text), _CHUNK_CHARS):
        chunk = text[start : start + _CHUNK_CHARS]
        yield b"text:" + chunk.encode("utf-8", "surrogatepass"), len(chunk), None


class _Known(NamedTuple):
    owners: tuple[str, ...]
    prefix: Prefix


class PrefixOwners:
    """Remembers which workers computed which start of a prompt, the last few of each.

    Attributes:
        on_served: Told of each prompt's starts that are remembered, and the worker.
    """

    def __init__(self, max_prefixes: int = _MAX_PREFIXES) -> None:
        self._known: Lru[_Known] = Lru(max_prefixes)
        self._deletions = Deletions()
        self.on_served: Callable[[Sequence[Prefix], str], None] = lambda *_: None

    def longest(self, prefixes: Sequence[Prefix]) -> dict[str, Prefix]:
        """By worker, the longest start that it is known to have, where that is more than a role."""
        found: dict[str, Prefix] = {}
        for prefix in reversed(prefixes):
            if prefix.num_chars or prefix.items:
                known = self._known.get(prefix.key)
                for worker in known.owners if known is not None else ():
                    found.setdefault(worker, prefix)
        return found

    def served(self, prefixes: Sequence[Prefix], worker: str, begun_s: float = inf) -> None:
        """A worker has computed a prompt, and with it all its starts, by work that began at `begun_s`."""
        if prefixes and self._deletions.cover(_label(prefixes[-1]), begun_s):
            return
        for prefix in prefixes:
            known = self._known.get(prefix.key)
            owners = known.owners if known is not None else ()
            if owners[:1] != (worker,):
                owners = (worker, *(one for one in owners if one != worker))[:_MAX_OWNERS]
            self._known.put(prefix.key, _Known(owners, prefix))
        self.on_served(prefixes, worker)

    def lost(self, worker: str, keys: Collection[str] | None) -> None:
        """A worker says that it has starts no longer; None: it has none at all."""
        if keys is None:
            self.forget_worker(worker)
            return
        for key in keys:
            known = self._known.peek(key)
            if known is not None and worker in known.owners:
                owners = tuple(one for one in known.owners if one != worker)
                self._known.replace(key, known._replace(owners=owners))

    def forget_worker(self, worker: str) -> None:
        """Its cache is gone."""
        for key, (owners, prefix) in self._known.items():
            if worker in owners:
                self._known.put(key, _Known(tuple(one for one in owners if one != worker), prefix))

    def forget_all(self, deletion: Deletion, now_s: float) -> int:
        """Forget starts that a deletion covers; returns how many."""
        self._deletions.add(deletion, now_s)
        theirs = [key for key, known in self._known.items() if _label(known.prefix).is_covered(deletion)]
        for key in theirs:
            self._known.pop(key)
        return len(theirs)


def _label(prefix: Prefix) -> CacheLabel:
    return CacheLabel(prefix.cache_salt, frozenset(prefix.items))
