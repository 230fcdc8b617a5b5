"""The operator's proxy, where downloads go through one. Neither its address nor its credentials are in any message."""

from base64 import b64encode

import yarl
from aiohttp import ClientConnectorDNSError, ClientHttpProxyError, ClientProxyConnectionError

from chiasm.errors import InvalidSettingError, MediaFetchError

_HINT = "The operator sets it with media.proxy"
_NEEDS_CREDENTIALS = 407
_UNREACHED = (502, 503, 504)
"""What a proxy answers in the place of a server that does not answer it."""


class Proxy:
    """Where to send requests, and what its failures are called."""

    def __init__(self, url: str) -> None:
        """Take the setting apart. Raises `InvalidSettingError`, which does not repeat it."""
        try:
            parts = yarl.URL(url)
        except ValueError:
            parts = yarl.URL()
        if parts.scheme not in ("http", "https") or not parts.host:
            raise InvalidSettingError("media.proxy is no URL of a proxy", hint="Write http://host:port")
        self.url = parts.origin()
        named = f"{parts.user or ''}:{parts.password or ''}"
        self._headers = {"Proxy-Authorization": f"Basic {b64encode(named.encode()).decode()}"} if named != ":" else {}

    def headers(self, scheme: str) -> tuple[dict[str, str], dict[str, str]]:
        """What to add to a request, and what to say when asking for a tunnel: to the proxy, and to nobody behind it."""
        return (self._headers, {}) if scheme == "http" else ({}, self._headers)

    def failure(self, error: Exception, name: str) -> MediaFetchError:
        """What to say of a failure on the way to the server called `name`."""
        if isinstance(error, ClientProxyConnectionError | ClientConnectorDNSError):  # it asks for no other name
            return MediaFetchError("The proxy that downloads go through cannot be reached", hint=_HINT)
        if isinstance(error, ClientHttpProxyError) and error.status == _NEEDS_CREDENTIALS:
            return _refused()
        return _unusable(name)

    def check(self, status: int, name: str) -> None:
        """Raise `MediaFetchError` for what the proxy answers in place of the server.

        A server that does not answer the proxy reads as one that does not answer us: not by how it failed.
        """
        if status == _NEEDS_CREDENTIALS:
            raise _refused()
        if status in _UNREACHED:
            raise _unusable(name)


def _refused() -> MediaFetchError:
    return MediaFetchError("The proxy that downloads go through refuses our credentials", hint=_HINT)


def _unusable(name: str) -> MediaFetchError:
    return MediaFetchError(f"{name} gave no usable answer")
