"""Starts of prompts, recognised by content and without a tokenizer, and who computed them last."""

import hashlib
from collections.abc import Iterator, Sequence

import msgspec

from chiasm.protocol.generation import ChatPrompt, GenerateRequest, ItemPart, TextPart, TextPrompt
from chiasm.routing.lru import Lru

_CHUNK_CHARS = 512
_CHUNK_TOKENS = 128
_CHARS_PER_TOKEN = 4
_MAX_PREFIXES = 65_536
_MAX_OWNERS = 8


class Prefix(msgspec.Struct, frozen=True):
    """A start of a prompt: a hash of all in it, the characters of its text, the identities of its pictures."""

    key: str
    num_chars: int
    items: tuple[str, ...]


def prefixes_of(request: GenerateRequest) -> list[Prefix]:
    """All starts of a prompt that may be recognised, shortest first, without knowing the model's tokens.

    Each key covers everything before it: roles, text, and pictures by the identity of their bytes, in order. Keys of
    requests with different salts have nothing in common.
    """
    found: list[Prefix] = []
    chain, num_chars = hashlib.sha256(request.cache_salt.encode()).digest(), 0
    items: tuple[str, ...] = ()
    for unit, size, item in _units(request):
        chain = hashlib.sha256(chain + unit).digest()
        num_chars += size
        items = (*items, item) if item is not None else items
        found.append(Prefix(chain.hex(), num_chars, items))
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


class PrefixOwners:
    """Remembers which workers computed which start of a prompt, the last few of each."""

    def __init__(self, max_prefixes: int = _MAX_PREFIXES) -> None:
        self._owners: Lru[tuple[str, ...]] = Lru(max_prefixes)

    def longest(self, prefixes: Sequence[Prefix]) -> dict[str, Prefix]:
        """By worker, the longest start that it is known to have, where that is more than a role."""
        found: dict[str, Prefix] = {}
        for prefix in reversed(prefixes):
            if prefix.num_chars or prefix.items:
                for worker in self._owners.get(prefix.key) or ():
                    found.setdefault(worker, prefix)
        return found

    def served(self, prefixes: Sequence[Prefix], worker: str) -> None:
        """A worker has computed a prompt, and with it all its starts."""
        for prefix in prefixes:
            owners = self._owners.get(prefix.key) or ()
            if owners[:1] != (worker,):
                owners = (worker, *(one for one in owners if one != worker))[:_MAX_OWNERS]
            self._owners.put(prefix.key, owners)

    def forget_worker(self, worker: str) -> None:
        """Its cache is gone."""
        for key, owners in self._owners.items():
            if worker in owners:
                self._owners.put(key, tuple(one for one in owners if one != worker))
