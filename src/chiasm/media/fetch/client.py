"""Downloads: one GET per item and hop, to a checked address, within one deadline and one size."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping

import msgspec
import yarl
from aiohttp import (
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    TCPConnector,
    ThreadedResolver,
)

from chiasm import __version__
from chiasm.errors import MediaFetchError, MediaRefusedError, MediaTooLargeError
from chiasm.media.fetch.cache import LOOKUPS, Download, FetchCache, Kept
from chiasm.media.fetch.policy import HttpUrl, UrlPolicy
from chiasm.media.fetch.proxy import Proxy
from chiasm.media.fetch.resolver import CheckedResolver, Lookup, system_lookup
from chiasm.settings import MediaSettings

_HEADERS = {
    "Accept": "image/*, video/*, audio/*",
    "Accept-Encoding": "identity",  # a compressed answer could unfold to any size
    "User-Agent": f"chiasm/{__version__}",
}
_REDIRECTS = (301, 302, 303, 307, 308)
_NOT_MODIFIED = 304
_CACHE_HEADERS = ("Age", "Cache-Control", "ETag", "Vary")
Watch = Callable[[bytes | bytearray], None]


class _Hop(msgspec.Struct, frozen=True):
    """Where a download has got to. What is said of it names the origin that the caller asked for, and no other."""

    asked: HttpUrl
    url: HttpUrl
    num_redirects: int = 0

    @property
    def name(self) -> str:
        return self.asked.origin + (f", redirected {self.num_redirects}x," if self.num_redirects else "")

    def forbidden(self) -> MediaRefusedError:
        return MediaRefusedError(
            f"{self.asked.origin} redirects to where policy forbids to go", hint="Send the final URL, or other media"
        )


class HttpFetcher:
    """Fetches what `UrlPolicy` allowed. Belongs to one event loop; `aclose` when done.

    Proxies of the environment and cookies are not used. Redirects are followed here and not by the HTTP library, so
    that every hop passes the policy and goes to an address that was checked. Through the settings' proxy, every hop's
    addresses are checked all the same, and what is dialled is the proxy's affair.
    """

    def __init__(self, settings: MediaSettings, policy: UrlPolicy, lookup: Lookup = system_lookup) -> None:
        self._settings = settings
        self._policy = policy
        self._resolver = CheckedResolver(policy.is_private_allowed, lookup)
        self._cache = None if settings.fetch_cache == "off" else FetchCache(settings)
        self._proxy = Proxy(settings.proxy) if settings.proxy else None
        self._session: ClientSession | None = None

    async def fetch(self, url: HttpUrl, watch: Watch, tenant: str = "") -> Download:
        """Return the body behind a URL. The setting's time limit includes waiting for a connection.

        Args:
            url: From `UrlPolicy.check`.
            watch: Called with all bytes so far whenever more have come; what it raises ends the download.
            tenant: Whose kept downloads may be used.

        Raises:
            MediaFetchError: No answer, another status than 200, cut off, or too slow.
            MediaRefusedError: The host is at a forbidden address, or redirects more often or elsewhere than allowed.
            MediaTooLargeError: More bytes than the setting allows for one item.
        """
        limit_s = self._settings.fetch_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                if self._cache is None:
                    return await self._get(url, watch)
                return await self._get_with(self._cache, url, watch, tenant)
        except TimeoutError:
            raise MediaFetchError(f"{url.origin} did not deliver within {limit_s:.3g} s") from None
        except (ClientError, OSError) as error:
            # One text for refused, reset, unknown host, bad TLS and bad HTTP: it must not tell what listens where.
            if self._proxy is None:
                raise MediaFetchError(f"{url.origin} gave no usable answer") from error
            raise self._proxy.failure(error, url.origin) from None  # whose causes hold its credentials

    @property
    def kept_bytes(self) -> int:
        """What kept downloads take."""
        if self._cache is None:
            return 0
        self._cache.expire(time.monotonic())
        return self._cache.num_bytes

    @property
    def lookups(self) -> Mapping[str, int]:
        """How often each of `LOOKUPS` was met; never, where nothing is kept."""
        return dict.fromkeys(LOOKUPS, 0) if self._cache is None else self._cache.lookups

    def note(self, tenant: str, url: HttpUrl, identity: str) -> None:
        """Note which item was made of a download, should it have been kept."""
        if self._cache is not None:
            self._cache.note(tenant, url, identity)

    def forget(self, identity: str | None, tenant: str | None) -> int:
        """Drop the kept downloads of an item or of a tenant; returns how many there were."""
        if self._cache is None:
            return 0
        num_of_item = 0 if identity is None else self._cache.forget_identity(identity)
        return num_of_item + (0 if tenant is None else self._cache.forget_tenant(tenant))

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
        await self._resolver.close()

    async def _get_with(self, cache: FetchCache, url: HttpUrl, watch: Watch, tenant: str) -> Download:
        """Get it, or use what is kept: only of a host whose addresses may be dialled now, and within today's limits."""
        kept = cache.find(tenant, url, time.monotonic())
        if kept is not None and kept.fresh_until_s > time.monotonic():
            await self._resolver.resolve(url.host, url.port)
            cache.lookups["hit"] += 1
            return self._checked(kept, watch)
        hop, num_deletions, came = _Hop(url, url), cache.num_deletions, "miss" if kept is None else "changed"
        async with await self._answer(hop, {} if kept is None else {"If-None-Match": kept.tag}) as response:
            if kept is not None and response.status == _NOT_MODIFIED:
                if not cache.confirm(tenant, url, kept, _cache_headers(response), time.monotonic()):
                    raise MediaFetchError(f"{url.origin} confirmed another version than it was asked about")
                cache.lookups["revalidated"] += 1
                return self._checked(kept, watch)
            following = self._next(hop, response)
            if following is None:
                download = await self._download(hop, response, watch)
                cache.lookups[came] += 1
                if cache.num_deletions == num_deletions:
                    cache.keep(tenant, url, download, _cache_headers(response), time.monotonic())
                return download
        download = await self._follow(following, watch)  # where a URL leads may change: that is not kept
        cache.lookups[came] += 1
        return download

    def _checked(self, kept: Kept, watch: Watch) -> Download:
        self._check_size(len(kept.download.data))
        watch(kept.download.data)
        return kept.download

    async def _get(self, url: HttpUrl, watch: Watch) -> Download:
        return await self._follow(_Hop(url, url), watch)

    async def _follow(self, hop: _Hop, watch: Watch) -> Download:
        while True:
            async with await self._answer(hop, {}) as response:
                following = self._next(hop, response)
                if following is None:
                    return await self._download(hop, response, watch)
            hop = following

    async def _download(self, hop: _Hop, response: ClientResponse, watch: Watch) -> Download:
        self._check_head(hop, response)
        data, content = await self._body(response, watch)
        return Download(bytes(data), content, response.content_type)

    async def _answer(self, hop: _Hop, headers: dict[str, str]) -> ClientResponse:
        if self._session is None:
            self._session = self._new_session()
        target = yarl.URL(hop.url.origin + hop.url.target, encoded=True)  # encoded: signatures cover the exact text
        try:
            if self._proxy is None:
                return await self._session.get(target, allow_redirects=False, headers=headers)
            await self._resolver.resolve(hop.url.host, hop.url.port)
            more, tunnel = self._proxy.headers(hop.url.scheme)
            return await self._session.get(
                target, allow_redirects=False, headers=headers | more, proxy=self._proxy.url, proxy_headers=tunnel
            )
        except MediaRefusedError:  # by the resolver, which names the host
            if hop.num_redirects:
                raise hop.forbidden() from None
            raise

    def _next(self, hop: _Hop, response: ClientResponse) -> _Hop | None:
        """Where the answer sends us, None when it is the last one."""
        if not 300 <= response.status < 400:
            return None
        if self._settings.max_redirects == 0 or response.status not in _REDIRECTS:
            raise MediaRefusedError(
                f"{hop.name} answered with a redirect ({response.status}), which is not followed",
                hint="Send the final URL",
            )
        if hop.num_redirects == self._settings.max_redirects:
            raise MediaRefusedError(
                f"{hop.asked.origin} redirects more than {self._settings.max_redirects} times",
                hint="Send the final URL",
            )
        location = response.headers.get("Location", "")
        if not location:
            raise MediaFetchError(f"{hop.name} answered with a redirect to nowhere")
        try:
            target = self._policy.check_redirect(hop.url, location)
        except MediaRefusedError:
            raise hop.forbidden() from None
        return _Hop(hop.asked, target, hop.num_redirects + 1)

    def _check_head(self, hop: _Hop, response: ClientResponse) -> None:
        if self._proxy is not None and hop.url.scheme == "http":
            self._proxy.check(response.status, hop.asked.origin)
        if response.status != 200:
            raise MediaFetchError(f"{hop.name} answered with status {response.status}")
        if response.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
            raise MediaFetchError(f"{hop.name} sent a compressed answer although it was asked not to")
        if response.content_length is not None:
            self._check_size(response.content_length)

    async def _body(self, response: ClientResponse, watch: Watch) -> tuple[bytearray, str]:
        """The bytes and their `content_identity`.

        A chunk is at most the library's buffer and one read of a socket, 384 KiB: hashing it here takes up to a fifth
        of a millisecond, and leaves nothing to be hashed after the last byte.
        """
        data, digest = bytearray(), hashlib.sha256()
        async for chunk in response.content.iter_any():
            data += chunk
            self._check_size(len(data))
            digest.update(chunk)
            watch(data)
        return data, digest.hexdigest()

    def _check_size(self, num_bytes: int) -> None:
        limit = self._settings.max_item_bytes
        if num_bytes > limit:
            raise MediaTooLargeError(f"The answer holds {num_bytes} bytes or more; the limit is {limit}")

    def _new_session(self) -> ClientSession:
        connector = TCPConnector(
            resolver=self._resolver if self._proxy is None else ThreadedResolver(),  # which then finds the proxy alone
            use_dns_cache=False,
            limit=self._settings.max_fetches,
            limit_per_host=self._settings.max_fetches_per_host,
        )
        return ClientSession(
            connector=connector,
            cookie_jar=DummyCookieJar(),
            timeout=ClientTimeout(total=None, sock_connect=self._settings.fetch_timeout_s),
            headers=_HEADERS,
            auto_decompress=False,
            trust_env=False,
        )


def _cache_headers(response: ClientResponse) -> dict[str, str]:
    """What an answer says about being kept. A header may stand there several times: together they are one list."""
    found = response.headers
    return {name: ", ".join(found.getall(name)) for name in _CACHE_HEADERS if name in found}
