"""What is kept of requests, where, for how long, and what deletes it: one list, made from the settings."""

import msgspec

from chiasm.gateway.aliases import MAX_ALIASES
from chiasm.settings import GatewaySettings, MediaSettings, Settings
from chiasm.sharing.base import MAX_ENTRIES, TTL_S

_MEDIA = "DELETE /admin/media/{sha256}"
_TENANT = "DELETE /admin/tenants/{tenant}/cache"


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of thing that outlives the request it came from, or may.

    Attributes:
        lifetime_s: After which it is gone or no longer used; None where only the bound ends it.
        deleted_by: Calls that delete it before; none where nothing of a request can be told from it.
    """

    what: str
    where: str
    holds: str
    lifetime_s: float | None
    bound: str
    deleted_by: tuple[str, ...] = ()


_BOTH = (_MEDIA, _TENANT)


def retention_of(settings: Settings) -> tuple[Retention, ...]:
    """What a server with these settings keeps. Nothing of it outlives the server's processes but logs."""
    return (*_media_and_workers(settings), *_gateway(settings), *_logs(settings.gateway), *_traces(settings))


def _media_and_workers(settings: Settings) -> tuple[Retention, ...]:
    media = settings.media
    return (
        Retention(
            what="media spool",
            where="files that only the server's user reads",
            holds="encoded bytes of media, until the first token",
            lifetime_s=media.spool_ttl_s,
            bound=f"media.max_spool_bytes = {media.max_spool_bytes}",
        ),
        *_downloads(media),
        Retention(
            what="embeddings",
            where="memory of workers",
            holds="encoder outputs of media",
            lifetime_s=settings.engine.embedding_ttl_s or None,
            bound=f"engine.embedding_cache_bytes = {settings.engine.embedding_cache_bytes}",
            deleted_by=_BOTH,
        ),
        Retention(
            what="prefix cache",
            where="memory of workers",
            holds="keys and values of prompts",
            lifetime_s=None,
            bound=f"engine.prefix_cache_bytes = {settings.engine.prefix_cache_bytes}; the longest unused go first",
            deleted_by=_BOTH,
        ),
        Retention(
            what="tensors on offer",
            where="memory of workers, or files of the transport",
            holds="embeddings, keys and values on their way to another worker",
            lifetime_s=settings.transfer.ttl_s,
            bound=f"transfer.max_bytes = {settings.transfer.max_bytes}",
            deleted_by=_BOTH,
        ),
    )


def _downloads(media: MediaSettings) -> tuple[Retention, ...]:
    if media.fetch_cache == "off":
        return ()
    return (
        Retention(
            what="downloads",
            where="memory of the gateway",
            holds="encoded bytes of media that a tenant named by URL",
            lifetime_s=media.fetch_cache_ttl_s,
            bound=f"media.fetch_cache_bytes = {media.fetch_cache_bytes}; the longest unused go first",
            deleted_by=_BOTH,
        ),
    )


def _gateway(settings: Settings) -> tuple[Retention, ...]:
    gateway = settings.gateway
    return (
        *_store(gateway),
        Retention(
            what="routing by content",
            where="memory of the gateway",
            holds="hashes of prompts and media, and which worker has them",
            lifetime_s=None,
            bound="a fixed number of hashes; the longest unused go first",
            deleted_by=_BOTH,
        ),
        Retention(
            what="quarantine",
            where="memory of the gateway",
            holds="hashes of requests that workers died of",
            lifetime_s=settings.routing.quarantine_s,
            bound="1024 hashes",
        ),
        Retention(
            what="names of media",
            where="memory of the gateway",
            holds="a tenant's uuid and the hash of the bytes it names",
            lifetime_s=None,
            bound=f"{MAX_ALIASES} names; the longest unused go first",
            deleted_by=_BOTH,
        ),
        Retention(
            what="receipts",
            where="memory of the gateway",
            holds="times, counts and workers' names; no content and no hash of it",
            lifetime_s=gateway.receipt_ttl_s,
            bound=f"gateway.max_receipts = {gateway.max_receipts}",
            deleted_by=(_TENANT,),
        ),
    )


def _store(gateway: GatewaySettings) -> tuple[Retention, ...]:
    if not gateway.store:
        return ()
    return (
        Retention(
            what="hints for other gateways",
            where="memory of the store",
            holds="hashes of prompts and media, handles of embeddings, and which worker has them",
            lifetime_s=TTL_S["content"],
            bound=f"{MAX_ENTRIES} batches",
            deleted_by=_BOTH,
        ),
        Retention(
            what="acts for other gateways",
            where="memory of the store",
            holds="hashes of media and names of tenants that were deleted, names of workers that are drained",
            lifetime_s=TTL_S["acts"],
            bound=f"{MAX_ENTRIES} acts",
        ),
        Retention(
            what="shares of limits",
            where="memory of the store",
            holds="names of tenants, and what each has used of late",
            lifetime_s=86_400.0,
            bound="one entry per tenant and limit",
        ),
    )


def _logs(gateway: GatewaySettings) -> tuple[Retention, ...]:
    return (
        Retention(
            what="log",
            where="standard error",
            holds="request ids, times and counts; no content, URL or key",
            lifetime_s=None,
            bound="whoever collects it decides",
        ),
        Retention(
            what="audit log",
            where=gateway.audit_file or "the log",
            holds="acts of operators: key ids, paths, status",
            lifetime_s=None,
            bound="whoever rotates the file decides",
        ),
    )


def _traces(settings: Settings) -> tuple[Retention, ...]:
    if not settings.observability.otlp_endpoint:
        return ()
    return (
        Retention(
            what="traces",
            where="a collector",
            holds="request ids, times, counts and workers' names; no content",
            lifetime_s=None,
            bound="whoever runs the collector decides",
        ),
    )
