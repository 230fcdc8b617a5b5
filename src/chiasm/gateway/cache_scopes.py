"""Whose cached work may serve whom."""

import re
from collections.abc import Collection

from chiasm.errors import InvalidRequestError
from chiasm.settings import GatewaySettings
from chiasm.tenancy.keys import ANONYMOUS

_HASH = re.compile(r"[0-9a-f]{16}")


class CacheScopes:
    """From a tenant to the salt under which workers and router cache what its requests leave behind.

    A tenant has a name in the keys file, or is a key from settings, known by a short hash of it; without keys all
    callers are one tenant.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._is_shared = settings.cache_scope == "shared" and bool(settings.api_keys or settings.keys_file)

    def salt_of(self, tenant: str) -> str:
        """Empty for those who share with everybody."""
        return "" if self._is_shared or tenant == ANONYMOUS else tenant

    def own_salt_of(self, tenant: str, known: Collection[str] = ()) -> str:
        """The salt of a tenant that shares with nobody; it need not have a key any more. `known` have names.

        Raises:
            InvalidRequestError: This is no tenant, or tenants share.
        """
        if tenant not in known and tenant != ANONYMOUS and not _HASH.fullmatch(tenant):
            raise InvalidRequestError(
                "A tenant is named as in the keys file, or by the first 16 hexadecimal digits of its key's SHA-256",
                hint="GET /admin/tenants names those that have a key",
            )
        if self._is_shared:
            raise InvalidRequestError(
                "Caches are shared between tenants: none has a part of its own",
                hint="Delete by medium, or set gateway.cache_scope to 'tenant'",
            )
        return self.salt_of(tenant)
