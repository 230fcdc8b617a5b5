"""A Redis server, or one that speaks its protocol, as the store. Version 6.2 is the oldest that is tested."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qs, urlsplit

import redis.asyncio as client
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from chiasm.errors import InvalidSettingError
from chiasm.sharing.base import MAX_ENTRIES, MAX_TOPIC_BYTES, TTL_S, Entry, PermitAsk, RateAsk, RateGrant
from chiasm.sharing.scripts import ANNOUNCE, DRAW, HOLD, PUBLISH

_PREFIX = "{chiasm}:"  # one slot of a cluster, since scripts see several keys
_TLS_FILES = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}
_MAX_CONNECTIONS = 4
_KEEP_MS = 3_600_000

Answer = TypeVar("Answer")


class RedisStore:
    """See `Store`. Connections are made when they are needed, at most four, and none waits longer than `timeout_s`."""

    def __init__(self, name: str, url: str, password: str = "", *, user: str = "", timeout_s: float = 1.0) -> None:
        """Raises `InvalidSettingError` for another kind of URL; connects to nothing.

        Without a user, the password is that of the server's default one.
        """
        check_url(url)
        self.name = name
        self.is_shared = True
        pool = client.BlockingConnectionPool.from_url(
            url,
            username=user or None,
            password=password or None,
            max_connections=_MAX_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),  # who asks has a deadline, and the link its own pauses
            protocol=2,
        )
        self._pool = pool
        self._redis = client.Redis(connection_pool=pool)
        self._announce = self._redis.register_script(ANNOUNCE)
        self._draw = self._redis.register_script(DRAW)
        self._hold = self._redis.register_script(HOLD)
        self._publish = self._redis.register_script(PUBLISH)

    async def announce(self, record: bytes, ttl_s: float) -> Mapping[str, bytes]:
        """See `Store`."""
        arguments: list[Any] = [self.name, record, int(ttl_s * 1000), _KEEP_MS]
        flat = await _answered(lambda: self._announce(keys=[_key("times"), _key("records")], args=arguments))
        return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}

    async def leave(self) -> None:
        """See `Store`. Permits are void without the announcement."""
        await _answered(lambda: self._redis.zrem(_key("times"), self.name))
        await _answered(lambda: self._redis.hdel(_key("records"), self.name))

    async def draw(self, asks: Sequence[RateAsk]) -> list[RateGrant]:
        """See `Store`."""
        arguments = [part for a in asks for part in (a.per_minute, a.most, a.returned, a.needed, a.wanted)]
        keys = [_key(f"rate:{ask.key}") for ask in asks]
        flat = await _answered(lambda: self._draw(keys=keys, args=arguments))
        return [RateGrant(float(one), float(wait)) for one, wait in zip(flat[::2], flat[1::2], strict=True)]

    async def hold(self, asks: Sequence[PermitAsk]) -> list[int]:
        """See `Store`."""
        arguments: list[Any] = [self.name, *(part for ask in asks for part in (ask.most, ask.using, ask.wanted))]
        keys = [_key("times"), *(_key(f"open:{ask.key}") for ask in asks)]
        return [int(one) for one in await _answered(lambda: self._hold(keys=keys, args=arguments))]

    async def publish(self, topic: str, payload: bytes) -> str:
        """See `Store`."""
        arguments: list[Any] = [self.name, payload, int(TTL_S[topic] * 1000), MAX_ENTRIES, MAX_TOPIC_BYTES]
        position: bytes = await _answered(lambda: self._publish(keys=_keys_of(topic), args=arguments))
        return position.decode()

    async def read(self, topic: str, after: str, max_entries: int) -> list[Entry]:
        """See `Store`."""
        key, _ = _keys_of(topic)
        answer: Any = await _answered(lambda: self._redis.xread({key: after}, count=max_entries))
        rows = answer[0][1] if answer else []
        return [Entry(position.decode(), row[b"by"].decode(), row[b"data"]) for position, row in rows]

    async def clear(self, topic: str) -> None:
        """See `Store`. Positions are times, so that they go on rising."""
        await _answered(lambda: self._redis.delete(*_keys_of(topic)))

    async def aclose(self) -> None:
        """See `Store`."""
        await _answered(self._pool.aclose)


def check_url(url: str) -> None:
    """Raise `InvalidSettingError` where this is not a server's address, or carries a password."""
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("redis", "rediss") and bool(parts.hostname) and (parts.port or 1) > 0
        is_usable = is_usable and re.fullmatch(r"/?|/[0-9]{1,5}", parts.path) is not None
    except ValueError:
        is_usable = False
    if not is_usable:
        raise InvalidSettingError(
            "gateway.store is no address of a store", hint="redis://host:port/db, or rediss:// with TLS"
        )
    _check_options(parts)
    if parts.password or parts.username:
        raise InvalidSettingError(
            "gateway.store has a user or password in it, which would be printed",
            hint="Use gateway.store_user with gateway.store_password or gateway.store_password_file",
        )


def _check_options(parts: SplitResult) -> None:
    """Refuse what would change how the client works, or be a password beside the one that is not printed."""
    known = _TLS_FILES if parts.scheme == "rediss" else set()
    if parts.fragment or not parse_qs(parts.query, keep_blank_values=True).keys() <= known:
        raise InvalidSettingError(
            "gateway.store has options in it that it cannot have",
            hint=f"Leave out what follows '?' or '#'; rediss:// may have {', '.join(sorted(_TLS_FILES))}",
        )


async def _answered(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Call, and say in one word what keeps the store from answering; its own words may quote keys and addresses."""
    try:
        return await call()
    except (RedisError, OSError, TimeoutError) as error:
        raise ConnectionError(type(error).__name__) from error


def _key(name: str) -> str:
    return _PREFIX + name


def _keys_of(topic: str) -> tuple[str, str]:
    """Of its entries, and of how many bytes their payloads have."""
    return _key(f"topic:{topic}"), _key(f"bytes:{topic}")
