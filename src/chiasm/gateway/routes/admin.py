"""What only operators may: delete, everywhere."""

import re

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from chiasm.errors import DeletionIncompleteError, InvalidRequestError, UnsupportedFeatureError
from chiasm.gateway.routes.json_response import json_response
from chiasm.gateway.state import Gateway
from chiasm.observability.logs import LOGGER
from chiasm.protocol.deletion import Deleted, Deletion, Forgetful
from chiasm.protocol.openai.errors import error_body, status_of
from chiasm.protocol.openai.models import ErrorDetail
from chiasm.sharing.acts import DeletionAct

ADMIN_PREFIX = "/admin/"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TIMEOUT_S = 20.0


class DeletionReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a deletion came to.

    Attributes:
        complete: Whether every worker and gateway has answered. What is pending then goes by itself, with the requests
            that use it.
        workers: What each of them has deleted; those with an `error` have not said that they did.
        num_spooled: Files with the medium's bytes that requests under way still need; they go with them.
        num_aliases: Callers' names for the medium, or the tenant's names for media, that mean nothing any more.
        num_receipts: The tenant's, that are gone. Receipts name media by a hash whose secret the gateway alone has.
        num_downloads: Kept downloads of the medium, or of the tenant, that are gone.
        gateways: The others over the same fleet, where there are: those with an `error` have not said that they did.
        error: There when not complete.
    """

    complete: bool
    workers: tuple[Deleted, ...]
    num_spooled: int
    num_aliases: int
    num_receipts: int
    num_downloads: int
    gateways: tuple[Deleted, ...] = ()
    error: ErrorDetail | msgspec.UnsetType = msgspec.UNSET


class AdminRoutes:
    """What is asked with DELETE below `/admin/`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def medium(self, request: Request) -> Response:
        """`DELETE /admin/media/{sha256}`: whoever has sent it."""
        identity = request.path_params["sha256"].lower()
        if not _SHA256.fullmatch(identity):
            raise InvalidRequestError(
                "A medium is named by the SHA-256 of its bytes, 64 hexadecimal digits",
                hint="'sha256sum FILE' and 'chiasm media check FILE' print it",
            )
        num_aliases = self._gateway.aliases.forget_identity(identity)
        num_spooled = self._gateway.ingest.num_spooled(identity)
        here = DeletionReport(
            complete=False,
            workers=(),
            num_spooled=num_spooled,
            num_aliases=num_aliases,
            num_receipts=0,
            num_downloads=self._gateway.ingest.forget(identity=identity),
        )
        return await self._delete(DeletionAct(Deletion(identity=identity)), here)

    async def tenant(self, request: Request) -> Response:
        """`DELETE /admin/tenants/{tenant}/cache`: all that its requests have left."""
        tenant = request.path_params["tenant"]
        gateway = self._gateway
        deletion = Deletion(cache_salt=gateway.scopes.own_salt_of(tenant, gateway.tenants.known()))
        here = DeletionReport(
            complete=False,
            workers=(),
            num_spooled=0,
            num_aliases=gateway.aliases.forget_tenant(tenant),
            num_receipts=gateway.receipts.forget_tenant(tenant),
            num_downloads=gateway.ingest.forget(tenant=tenant),
        )
        return await self._delete(DeletionAct(deletion, tenant), here)

    async def _delete(self, act: DeletionAct, here: DeletionReport) -> Response:
        """Delete from the workers and other gateways; `here` says what the gateway itself has deleted."""
        worker = self._gateway.worker
        if not isinstance(worker, Forgetful):
            raise UnsupportedFeatureError("This engine's caches cannot be deleted from")
        deleted = await worker.forget(act.deletion, _TIMEOUT_S)
        gateways = await self._gateway.peers.tell(act)
        silent = [one.worker for one in (*deleted, *gateways) if one.error]
        report = msgspec.structs.replace(here, complete=not silent, workers=deleted, gateways=gateways)
        LOGGER.info("Deletion by an operator: %s", "complete" if report.complete else "incomplete")
        if report.complete:
            return json_response(report)
        error = DeletionIncompleteError(
            f"Not every worker and gateway said that it has deleted: {', '.join(silent)}",
            hint="Repeat this when they answer again",
        )
        return json_response(msgspec.structs.replace(report, error=error_body(error).error), status_of(error))
