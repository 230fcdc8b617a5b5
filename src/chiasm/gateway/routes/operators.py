"""What operators may look at: tenants and what they use, keys, all receipts, how long things are kept."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from chiasm.gateway.retention import Retention
from chiasm.gateway.routes.debug import limit_of
from chiasm.gateway.routes.json_response import json_response
from chiasm.gateway.state import Gateway
from chiasm.observability.receipt import Receipt
from chiasm.tenancy.file import KeyEntry
from chiasm.tenancy.tenants import TenantUse


class TenantList(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `GET /admin/tenants`."""

    cache_scope: str
    tenants: list[TenantUse]


class KeyView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key of the keys file. Not its hash either."""

    id: str
    tenant: str
    scopes: tuple[str, ...]
    created: str
    expires: str | None = None


class KeyList(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `GET /admin/keys`. `fault` says what is wrong with the file now; those read before go on working."""

    loaded_at_unix_s: float
    fault: str | None
    num_keys_in_settings: int
    keys: tuple[KeyView, ...]


class OwnedReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt and whose it is."""

    tenant: str
    receipt: Receipt


class RetentionList(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `GET /admin/retention`."""

    kept: tuple[Retention, ...]


class OperatorRoutes:
    """What is asked with GET below `/admin/`."""

    def __init__(self, gateway: Gateway, kept: tuple[Retention, ...]) -> None:
        self._gateway = gateway
        self._kept = kept

    async def tenants(self, request: Request) -> Response:
        """`GET /admin/tenants`: those of `gateway.api_keys` in their order, then those of the keys file."""
        gateway = self._gateway
        return json_response(TenantList(cache_scope=gateway.settings.cache_scope, tenants=gateway.tenants.uses()))

    async def keys(self, request: Request) -> Response:
        """`GET /admin/keys`."""
        tenants, settings = self._gateway.tenants, self._gateway.settings
        return json_response(
            KeyList(
                loaded_at_unix_s=tenants.loaded_at_unix_s,
                fault=tenants.fault,
                num_keys_in_settings=len({*settings.api_keys, *settings.admin_keys}),
                keys=tuple(map(_view, tenants.file.keys)),
            )
        )

    async def receipts(self, request: Request) -> Response:
        """`GET /admin/receipts?limit=N`: of all tenants, newest first."""
        newest = self._gateway.receipts.latest_with_tenants(limit_of(request, self._gateway.settings.max_receipts))
        return json_response({"receipts": [OwnedReceipt(tenant=tenant, receipt=one) for tenant, one in newest]})

    async def retention(self, request: Request) -> Response:
        """`GET /admin/retention`: what is kept, where, for how long, and what deletes it."""
        return json_response(RetentionList(kept=self._kept))


def _view(key: KeyEntry) -> KeyView:
    expires = None if key.expires is None else key.expires.isoformat()
    return KeyView(id=key.id, tenant=key.tenant, scopes=key.scopes, created=key.created.isoformat(), expires=expires)
