"""Which http(s) URLs may be fetched, decided from the text alone, before anything is resolved or dialled."""

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import SplitResult, urljoin, urlsplit

import msgspec

from chiasm.errors import MediaRefusedError
from chiasm.media.fetch.addresses import Address, is_dialable
from chiasm.settings import MediaSettings

_PRINTABLE = re.compile(r"[!-~]+")  # no spaces, no controls, nothing outside ASCII
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_URL_CHARS = 8192
_MAX_HOST_CHARS = 253


class HttpUrl(msgspec.Struct, frozen=True):
    """A URL that passed the policy. `target` is path and query exactly as sent, which keeps signatures valid."""

    scheme: str
    host: str
    port: int
    target: str

    def __repr__(self) -> str:
        return f"HttpUrl({self.origin})"

    @property
    def origin(self) -> str:
        """Scheme, host and port: the part that may be shown."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}")


class UrlPolicy:
    """The rules of `MediaSettings` as one check."""

    def __init__(self, settings: MediaSettings) -> None:
        self._domains = _normalised(settings.allowed_domains)
        self._private_hosts = _normalised(settings.allowed_private_hosts)
        self._schemes = ("https", "http") if settings.allow_http else ("https",)
        self._ports = frozenset(settings.allowed_ports)

    def check(self, url: str) -> HttpUrl:
        """Return the parts of an allowed URL. Raises `MediaRefusedError`; its text never holds path or query."""
        parts = _split(url)
        if parts.scheme not in self._schemes:
            raise MediaRefusedError(f"URLs of scheme '{parts.scheme}' are not fetched", hint="Use https")
        host, address = _host(parts)
        port = _port(parts)
        if port not in self._ports:
            raise MediaRefusedError(f"Port {port} is not among those that URLs may name")
        if not _matches(host, self._domains):
            raise MediaRefusedError(
                f"Host '{host}' is not among the allowed domains",
                hint="Send the picture as a data URL, or ask the operator to allow the domain",
            )
        if address is not None and not is_dialable(address, private_allowed=self.is_private_allowed(host)):
            raise MediaRefusedError(
                f"Host '{host}' is not at a public address",
                hint="The operator can list it in media.allowed_private_hosts",
            )
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return HttpUrl(parts.scheme, host, port, target)

    def check_redirect(self, url: HttpUrl, location: str) -> HttpUrl:
        """Return the parts of where an allowed URL redirects to: absolute, or relative to it.

        Raises `MediaRefusedError`, whose text may name hosts that the caller did not: it is not for the caller.
        """
        _check_text(location)  # before joining, which would quietly drop tabs and an empty fragment
        try:
            parts = urlsplit(location)
            joined = urljoin(url.origin + url.target, location)
        except ValueError:
            raise MediaRefusedError("The redirect's host is malformed") from None
        if not parts.netloc and (parts.scheme or location.startswith("//")):
            # `http:///there` and `http:there` are paths to this parser, and hosts to others.
            raise MediaRefusedError("The redirect names no host where one belongs")
        target = self.check(joined)
        if (url.scheme, target.scheme) == ("https", "http"):
            raise MediaRefusedError("The redirect leads from https to http")
        return target

    def is_private_allowed(self, host: str) -> bool:
        """Say whether the operator expects this host at a private or loopback address."""
        return _matches(host, self._private_hosts)


def _normalised(hosts: Iterable[str]) -> tuple[str, ...]:
    return tuple(_canonical(host.strip().lower().strip("[]").rstrip(".")) for host in hosts)


def _canonical(host: str) -> str:
    try:
        return str(ip_address(host))
    except ValueError:
        return host


def _matches(host: str, allowed: Iterable[str]) -> bool:
    return any(host.endswith(entry) if entry.startswith(".") else host == entry for entry in allowed)


def _check_text(url: str) -> None:
    if len(url) > _MAX_URL_CHARS:
        raise MediaRefusedError(f"The URL has {len(url)} characters; the limit is {_MAX_URL_CHARS}")
    if not _PRINTABLE.fullmatch(url) or "\\" in url:
        raise MediaRefusedError(
            "The URL holds spaces, control characters, backslashes or characters outside ASCII",
            hint="Percent-encode the path; write an international host name in its xn-- form",
        )
    if "#" in url:
        raise MediaRefusedError("The URL carries a fragment", hint="Remove the part from '#' on")


def _split(url: str) -> SplitResult:
    _check_text(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        raise MediaRefusedError("The URL's host is malformed") from None
    if "@" in parts.netloc:
        raise MediaRefusedError("The URL carries credentials", hint="Remove the part before '@'")
    return parts


def _port(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        raise MediaRefusedError("The URL's port is not a number between 1 and 65535") from None
    return _DEFAULT_PORTS[parts.scheme] if port is None else port


def _host(parts: SplitResult) -> tuple[str, Address | None]:
    """The host in its one canonical spelling, and its address when it is a literal."""
    host = (parts.hostname or "").removesuffix(".")
    if "[" in parts.netloc:
        return _ipv6(host)
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return _ipv4(host)
    if len(host) > _MAX_HOST_CHARS or not all(_LABEL.fullmatch(label) for label in labels):
        raise MediaRefusedError("The URL's host is malformed")
    return host, None


def _ipv4(host: str) -> tuple[str, Address]:
    # Decimal, octal, hexadecimal and shortened forms are addresses to a resolver and names to a naive check.
    try:
        address = IPv4Address(host)
    except ValueError:
        raise MediaRefusedError(
            "The URL's host is a number but not a plain IPv4 address", hint="Write four decimal numbers"
        ) from None
    return str(address), address


def _ipv6(host: str) -> tuple[str, Address]:
    try:
        address = IPv6Address(host)
    except ValueError:
        raise MediaRefusedError("The URL's host is not an IPv6 address") from None
    if address.scope_id is not None:
        raise MediaRefusedError("The URL's host names a network zone")
    return str(address), address
