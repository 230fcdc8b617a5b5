"""Callers' own names for media. A name belongs to one tenant and, once used, means the same bytes for good."""

from collections import OrderedDict

from chiasm.errors import InvalidRequestError

MAX_ALIASES = 65_536


class MediaAliases:
    """Binds (tenant, name) to a content identity. Bounded: the names longest unused are forgotten."""

    def __init__(self, max_aliases: int = MAX_ALIASES) -> None:
        self._max_aliases = max_aliases
        self._identities: OrderedDict[tuple[str, str], str] = OrderedDict()

    def bind(self, tenant: str, name: str, identity: str, param: str) -> None:
        """Note that `name` means the bytes with this identity. Raises `InvalidRequestError` when it means others."""
        key = (tenant, name)
        known = self._identities.setdefault(key, identity)
        self._identities.move_to_end(key)
        if len(self._identities) > self._max_aliases:
            self._identities.popitem(last=False)
        if known != identity:
            raise InvalidRequestError(
                "This uuid already names other bytes", hint="Use a new uuid for new content, or none", param=param
            )

    def forget_identity(self, identity: str) -> int:
        """Unbind all names of some bytes; returns how many there were."""
        return self._forget([key for key, known in self._identities.items() if known == identity])

    def forget_tenant(self, tenant: str) -> int:
        """Unbind all names of a tenant; returns how many there were."""
        return self._forget([key for key in self._identities if key[0] == tenant])

    def _forget(self, keys: list[tuple[str, str]]) -> int:
        for key in keys:
            del self._identities[key]
        return len(keys)
