"""Keys by their hashes: who sends one, and what it opens."""

import hashlib
import hmac
import time
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

import msgspec

Scope = Literal["infer", "pool", "metrics", "admin"]
"""Generation; pooling; numbers about the whole server; everything below /admin/, and nothing else."""
SCOPES: frozenset[str] = frozenset(get_args(Scope))

ANONYMOUS = "anonymous"
"""The tenant of all callers where no keys are configured."""

_TENANT_DIGITS = 16


class Caller(msgspec.Struct, frozen=True):
    """Who a key belongs to. `key_id` names the key without opening anything."""

    key_id: str
    tenant: str
    scopes: frozenset[str]
    expires_at_unix_s: float | None = None


NOBODY_IN_PARTICULAR = Caller("", ANONYMOUS, SCOPES - {"admin"})
"""Every caller, where no keys are configured."""


class KeyRing:
    """The keys that open something. Immutable, so that a request sees the old or the new ones and nothing between."""

    def __init__(self, callers: Mapping[bytes, Caller]) -> None:
        """Take callers by the SHA-256 digests of their keys."""
        self._callers = {digest[:8]: (digest, caller) for digest, caller in callers.items()}

    def __len__(self) -> int:
        return len(self._callers)

    def find(self, key: bytes) -> Caller | None:
        """Who sends this key; None for one that is not known, or not any more.

        Only the hash is looked up, which nobody can steer, and compared in constant time.
        """
        digest = digest_of(key)
        known, caller = self._callers.get(digest[:8], (b"", None))
        if caller is None or not key or not hmac.compare_digest(digest, known):
            return None
        if caller.expires_at_unix_s is not None and caller.expires_at_unix_s <= time.time():
            return None
        return caller


def callers_of_settings(api_keys: Iterable[str], admin_keys: Iterable[str] = ()) -> dict[bytes, Caller]:
    """Keys in their simple form: each API key is a tenant of its own; admin keys open `/admin/`."""
    callers = {}
    for keys, scopes in ((api_keys, SCOPES - {"admin"}), (admin_keys, frozenset({"admin"}))):
        for key in keys:
            digest = digest_of(key.encode())
            callers[digest] = Caller(_short(digest), _short(digest), scopes)
    return callers


def tenant_of(api_key: str) -> str:
    """The name of the callers who send a key from settings: the start of its SHA-256."""
    return _short(digest_of(api_key.encode()))


def digest_of(key: bytes) -> bytes:
    """What is kept of a key. Keys that `new_key` made have 256 random bits, so that no salt is needed to hide them."""
    return hashlib.sha256(key).digest()


def _short(digest: bytes) -> str:
    return digest.hex()[:_TENANT_DIGITS]
