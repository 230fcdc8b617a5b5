"""Which keys open which path."""

from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from chiasm.asgi.auth import caller_of, no_valid_key, refuse
from chiasm.errors import PermissionDeniedError
from chiasm.tenancy.keys import NOBODY_IN_PARTICULAR, SCOPES
from chiasm.tenancy.tenants import Tenants

Scopes = frozenset[str]

ANY: Scopes = SCOPES - {"admin"}
INFER: Scopes = frozenset({"infer"})
POOL: Scopes = frozenset({"pool"})
METRICS: Scopes = frozenset({"metrics"})
ADMIN: Scopes = frozenset({"admin"})


class Access:
    """ASGI middleware, outermost, so that nothing about a path can be learnt without a key.

    Sets `scope["caller"]` and `scope["tenant"]`. A key with one of the scopes that a path asks for opens it.
    """

    def __init__(
        self,
        app: ASGIApp,
        tenants: Tenants,
        scopes: Scopes = ANY,
        paths: Mapping[str, Scopes] | None = None,
        open_paths: frozenset[str] = frozenset(),
    ) -> None:
        """Ask for `scopes`, but on `paths` for theirs and on `open_paths` for nothing."""
        self._app = app
        self._tenants = tenants
        self._scopes = scopes
        self._paths = paths or {}
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401 or 403 without reading its body."""
        if scope["type"] == "http":
            path = scope["path"]
            wanted = self._paths.get(path, self._scopes)
            caller = NOBODY_IN_PARTICULAR
            if path not in self._open_paths and (wanted is ADMIN or not self._tenants.is_open):
                found = caller_of(scope["headers"], self._tenants.find)
                if found is None:
                    await refuse(send, no_valid_key())
                    return
                caller = found
                if wanted.isdisjoint(caller.scopes):
                    await refuse(send, _not_for_this(wanted))
                    return
            scope["caller"] = caller
            scope["tenant"] = caller.tenant
        await self._app(scope, receive, send)


def _not_for_this(wanted: Scopes) -> PermissionDeniedError:
    scopes = " or ".join(f"'{one}'" for one in sorted(wanted))
    return PermissionDeniedError("This API key does not open this path", hint=f"Use a key with the scope {scopes}")
