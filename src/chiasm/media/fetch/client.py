"""Downloads: one GET per item, to a checked address, within one deadline and one size."""

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
    "Accept": "image/*",
    "Accept-Encoding": "identity",  # a compressed answer could unfold to any size
    "User-Agent": f"chiasm/{__version__}",
}


class Download(msgspec.Struct, frozen=True):
    """The body of an answer and the media type it claims."""

    data: bytes
    label: str


class HttpFetcher:
    """Fetches what `UrlPolicy` allowed. Belongs to one event loop; `aclose` when done.

    Proxies of the environment, cookies and redirects are not used: each would put a request at an address that nobody
    checked.
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
            MediaRefusedError: The host is at a forbidden address, or it answers with a redirect.
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
        if self._session is None:
            self._session = self._new_session()
        target = yarl.URL(url.origin + url.target, encoded=True)  # encoded: signatures cover the exact text
        async with self._session.get(target, allow_redirects=False) as response:
            self._check_head(url, response)
            data = await self._body(response, watch)
        return Download(bytes(data), response.content_type)

    def _check_head(self, url: HttpUrl, response: ClientResponse) -> None:
        if 300 <= response.status < 400:
            raise MediaRefusedError(
                f"{url.origin} answered with a redirect ({response.status}), which is not followed",
                hint="Send the final URL",
            )
        if response.status != 200:
            raise MediaFetchError(f"{url.origin} answered with status {response.status}")
        if response.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
            raise MediaFetchError(f"{url.origin} sent a compressed answer although it was asked not to")
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
