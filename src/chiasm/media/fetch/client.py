"""Downloads: one GET per item and hop, to a checked address, within one deadline and one size."""

import asyncio
from collections.abc import Callable

import msgspec
import yarl
from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

from chiasm import __version__
from chiasm.errors import MediaFetchError, MediaRefusedError, MediaTooLargeError
from chiasm.media.fetch.policy import HttpUrl, UrlPolicy
from chiasm.media.fetch.resolver import CheckedResolver, Lookup, system_lookup
from chiasm.settings import MediaSettings

_HEADERS = {
    "Accept": "image/*, video/*, audio/*",
    "Accept-Encoding": "identity",  # a compressed answer could unfold to any size
    "User-Agent": f"chiasm/{__version__}",
}
_REDIRECTS = (301, 302, 303, 307, 308)


class Download(msgspec.Struct, frozen=True):
    """The body of an answer and the media type it claims."""

    data: bytes
    label: str


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
    that every hop passes the policy and goes to an address that was checked.
    """

    def __init__(self, settings: MediaSettings, policy: UrlPolicy, lookup: Lookup = system_lookup) -> None:
        self._settings = settings
        self._policy = policy
        self._lookup = lookup
        self._slots = asyncio.Semaphore(settings.max_fetches)
        self._session: ClientSession | None = None

    async def fetch(self, url: HttpUrl, watch: Callable[[bytearray], None]) -> Download:
        """Return the body behind a URL. The setting's time limit includes waiting for a free slot.

        Args:
            url: From `UrlPolicy.check`.
            watch: Called with all bytes so far whenever more have come; what it raises ends the download.

        Raises:
            MediaFetchError: No answer, another status than 200, cut off, or too slow.
            MediaRefusedError: The host is at a forbidden address, or redirects more often or elsewhere than allowed.
            MediaTooLargeError: More bytes than the setting allows for one item.
        """
        limit_s = self._settings.fetch_timeout_s
        try:
            async with asyncio.timeout(limit_s), self._slots:
                return await self._get(url, watch)
        except TimeoutError:
            raise MediaFetchError(f"{url.origin} did not deliver within {limit_s:.3g} s") from None
        except (ClientError, OSError) as error:
            # One text for refused, reset, unknown host, bad TLS and bad HTTP: it must not tell what listens where.
            raise MediaFetchError(f"{url.origin} gave no usable answer") from error

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def _get(self, url: HttpUrl, watch: Callable[[bytearray], None]) -> Download:
        hop = _Hop(url, url)
        while True:
            async with await self._answer(hop) as response:
                following = self._next(hop, response)
                if following is None:
                    self._check_head(hop, response)
                    data = await self._body(response, watch)
                    return Download(bytes(data), response.content_type)
            hop = following

    async def _answer(self, hop: _Hop) -> ClientResponse:
        if self._session is None:
            self._session = self._new_session()
        target = yarl.URL(hop.url.origin + hop.url.target, encoded=True)  # encoded: signatures cover the exact text
        try:
            return await self._session.get(target, allow_redirects=False)
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
        if response.status != 200:
            raise MediaFetchError(f"{hop.name} answered with status {response.status}")
        if response.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
            raise MediaFetchError(f"{hop.name} sent a compressed answer although it was asked not to")
        if response.content_length is not None:
            self._check_size(response.content_length)

    async def _body(self, response: ClientResponse, watch: Callable[[bytearray], None]) -> bytearray:
        data = bytearray()
        async for chunk in response.content.iter_any():
            data += chunk
            self._check_size(len(data))
            watch(data)
        return data

    def _check_size(self, num_bytes: int) -> None:
        limit = self._settings.max_item_bytes
        if num_bytes > limit:
            raise MediaTooLargeError(f"The answer holds {num_bytes} bytes or more; the limit is {limit}")

    def _new_session(self) -> ClientSession:
        connector = TCPConnector(
            resolver=CheckedResolver(self._policy.is_private_allowed, self._lookup),
            use_dns_cache=False,
            limit=self._settings.max_fetches,
        )
        return ClientSession(
            connector=connector,
            cookie_jar=DummyCookieJar(),
            timeout=ClientTimeout(total=None, sock_connect=self._settings.fetch_timeout_s),
            headers=_HEADERS,
            auto_decompress=False,
            trust_env=False,
        )
