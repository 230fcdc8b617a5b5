"""Serving the console's files."""

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chiasm.gateway.console import __name__ as package

_FOLDER = "static"
_PAGE = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def console_routes() -> list[Route]:
    """The page at `/console`, and below it what the page asks for. The files hold nothing that needs a key."""
    return [Route(path, _file(name).get) for path, name in _paths().items()]


def console_paths() -> frozenset[str]:
    """The paths of `console_routes`."""
    return frozenset(_paths())


def _paths() -> dict[str, str]:
    names = [entry.name for entry in files(package).joinpath(_FOLDER).iterdir() if entry.name != _PAGE]
    return {"/console": _PAGE} | {f"/console/{name}": name for name in sorted(names)}


def _file(name: str) -> "_File":
    return _File(files(package).joinpath(_FOLDER, name).read_bytes(), _TYPES[f".{name.rpartition('.')[2]}"])


class _File:
    """One file, held in memory."""

    def __init__(self, content: bytes, media_type: str) -> None:
        self._content = content
        self._media_type = media_type

    async def get(self, request: Request) -> Response:
        return Response(self._content, headers=_HEADERS, media_type=self._media_type)
