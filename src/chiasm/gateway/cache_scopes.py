"""Whose cached work may serve whom."""

from chiasm.asgi.auth import ANONYMOUS
from chiasm.settings import GatewaySettings


class CacheScopes:
    """From a tenant to the salt under which workers and router cache what its requests leave behind.

    A tenant is an API key, known by a short hash of it; without keys all callers are one tenant.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._is_shared = settings.cache_scope == "shared"

    def salt_of(self, tenant: str) -> str:
        """Empty for those who share with everybody."""
        return "" if self._is_shared or tenant == ANONYMOUS else tenant
