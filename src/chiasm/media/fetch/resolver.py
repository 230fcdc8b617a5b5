"""Name resolution that returns only addresses that may be dialled."""

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address

from aiohttp.abc import AbstractResolver, ResolveResult

from chiasm.errors import MediaRefusedError
from chiasm.media.fetch.addresses import is_dialable

Lookup = Callable[[str, int], list[str]]
"""Host and port to address texts. Blocks; raises `OSError` when the name is unknown."""

_LOOKUP_THREADS = 4


def system_lookup(host: str, port: int) -> list[str]:
    """Ask the system's resolver."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class CheckedResolver(AbstractResolver):
    """Resolves once per connection and hands the checked addresses themselves to the dialler.

    One forbidden address among several refuses the host: a name that mixes public and inner addresses is an attack or
    a mistake. `is_private_allowed` says whether a host may have private addresses.
    """

    def __init__(self, is_private_allowed: Callable[[str], bool], lookup: Lookup = system_lookup) -> None:
        self._is_private_allowed = is_private_allowed
        self._lookup = lookup
        # Own threads: names that hang must not starve whatever else uses the loop's default executor.
        self._pool = ThreadPoolExecutor(_LOOKUP_THREADS, thread_name_prefix="chiasm-resolve")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the host's addresses. Raises `MediaRefusedError` when one of them must not be dialled."""
        texts = await asyncio.get_running_loop().run_in_executor(self._pool, self._lookup, host, port)
        addresses = [ip_address(text) for text in texts]
        private_allowed = self._is_private_allowed(host)
        if not all(is_dialable(address, private_allowed=private_allowed) for address in addresses):
            raise MediaRefusedError(
                f"Host '{host}' is not at a public address",
                hint="The operator can list it in media.allowed_private_hosts",
            )
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        """Let lookups under way end unheard."""
        self._pool.shutdown(wait=False, cancel_futures=True)
