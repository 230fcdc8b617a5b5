"""Where the server under load is."""

from urllib.parse import urlsplit

import msgspec

from chiasm.errors import InvalidSettingError

_PORTS = {"http": 80, "https": 443}


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """An address. `prefix` comes before the API's own paths; `headers` are the lines that every request has."""

    host: str
    port: int
    is_tls: bool = False
    prefix: str = ""
    headers: bytes = b""

    @property
    def authority(self) -> str:
        """The value of `Host`."""
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The address as a URL, without keys."""
        return f"http{'s' if self.is_tls else ''}://{self.authority}{self.prefix}"

    @property
    def header_fields(self) -> dict[str, str]:
        """The headers by name, for clients that want them so."""
        return dict(line.split(": ", 1) for line in self.headers.decode().splitlines())


def parse_target(url: str, api_key: str | None = None) -> Target:
    """Read `http://host:port`, with or without `/v1`. Raises `InvalidSettingError`."""
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if not host or parts.scheme not in _PORTS or parts.username or parts.query:
        raise InvalidSettingError("This is not a server's URL", hint="For example http://127.0.0.1:8000")
    if api_key and not (api_key.isascii() and api_key.isprintable()):
        raise InvalidSettingError("An API key is made of printable ASCII characters")
    return Target(
        host=host,
        port=port or _PORTS[parts.scheme],
        is_tls=parts.scheme == "https",
        prefix=parts.path.rstrip("/").removesuffix("/v1"),
        headers=f"Authorization: Bearer {api_key}\r\n".encode() if api_key else b"",
    )
