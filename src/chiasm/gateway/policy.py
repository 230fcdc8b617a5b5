"""What a server allows and refuses, for people who answer for it: limits, who may do what, what is kept.

Made from the settings alone. Keys, tokens, paths and the names of private hosts are not in it; that they are set is.
"""

from typing import Any

import msgspec
from msgspec import Meta

from chiasm.gateway.retention import Retention, retention_of
from chiasm.settings import Settings

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_LIMITED = ("gateway", "media", "engine", "pooling")
_MORE_LIMITS = ("request_timeout_s", "receipt_ttl_s", "fetch_timeout_s", "decode_timeout_s", "embedding_ttl_s")


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A bound that requests meet, and the setting behind it."""

    setting: str
    value: float
    meaning: str


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """How the server guards something. `is_open` says that anybody may."""

    about: str
    says: str
    is_open: bool = False


class ServerPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `GET /debug/policy`."""

    limits: tuple[Limit, ...]
    rules: tuple[Rule, ...]
    kept: tuple[Retention, ...]


def policy_of(settings: Settings) -> ServerPolicy:
    """What these settings come to."""
    return ServerPolicy(
        limits=tuple(limit for name in _LIMITED for limit in _limits(name, getattr(settings, name))),
        rules=(*_callers(settings), *_media(settings), *_inside(settings)),
        kept=tuple(map(_without_path, retention_of(settings))),
    )


def _limits(section: str, values: Any) -> list[Limit]:
    return [
        Limit(setting=f"{section}.{field.name}", value=getattr(values, field.name), meaning=_meaning(field.type))
        for field in msgspec.structs.fields(type(values))
        if (field.name.startswith("max_") or field.name in _MORE_LIMITS)
        and isinstance(getattr(values, field.name), int | float)
    ]


def _meaning(annotation: Any) -> str:
    metas = [meta for meta in getattr(annotation, "__metadata__", ()) if isinstance(meta, Meta)]
    return " ".join(meta.description for meta in metas if meta.description)


def _callers(settings: Settings) -> tuple[Rule, ...]:
    gateway = settings.gateway
    has_keys = bool(gateway.api_keys or gateway.keys_file)
    has_admins = bool(gateway.admin_keys or gateway.keys_file)
    is_local = gateway.host in _LOOPBACK
    return (
        Rule(about="callers", says="need a key" if has_keys else "need no key", is_open=not has_keys),
        Rule(
            about="network",
            says="this machine alone" if is_local else "every address that reaches it",
            is_open=not is_local,
        ),
        Rule(about="operators", says="have keys of their own" if has_admins else "none: /admin/ is closed"),
        Rule(about="acts of operators", says="go to a file" if gateway.audit_file else "go to the log"),
        Rule(
            about="caches",
            says="found by callers of the same tenant"
            if gateway.cache_scope == "tenant"
            else "found by all callers, who can tell by time what others sent",
            is_open=gateway.cache_scope == "shared" and has_keys,
        ),
    )


def _media(settings: Settings) -> tuple[Rule, ...]:
    media = settings.media
    schemes = "https and http" if media.allow_http else "https alone"
    named = [one for one in media.allowed_domains if one not in media.allowed_private_hosts]
    num_private = len(media.allowed_domains) - len(named)
    hosts = ", ".join([*named, *([f"{num_private} private hosts"] if num_private else ())])
    return (
        Rule(
            about="media by URL",
            says=f"from {hosts}; {schemes}; ports {', '.join(map(str, media.allowed_ports))}" if hosts else "refused",
        ),
        Rule(about="redirects", says=f"at most {media.max_redirects}, each checked like the first address"),
        Rule(
            about="private addresses",
            says=f"refused but for {len(media.allowed_private_hosts)} named hosts"
            if media.allowed_private_hosts
            else "refused, after the name is resolved",
        ),
        Rule(about="files", says="below one folder" if media.allowed_root else "refused"),
        Rule(
            about="decoding",
            says="in processes that may crash without harm to the server"
            if media.decoder == "processes"
            else "in the process that computes",
        ),
        Rule(about="pixels", says=f"counted in the header, before any is decoded; {media.preparation} preparation"),
    )


def _inside(settings: Settings) -> tuple[Rule, ...]:
    routing = settings.routing
    if settings.engine.kind == "vllm":
        return (_vllm_servers(has_token=bool(routing.worker_token), are_found=bool(settings.vllm.workers_file)),)
    if routing.topology == "local" and not routing.members:
        return (Rule(about="workers", says="in the server's process"),)
    says = "share a token with the server" if routing.worker_token else "listen on this machine alone"
    return (Rule(about="workers", says=says),)


def _vllm_servers(*, has_token: bool, are_found: bool) -> Rule:
    if not are_found:
        return Rule(about="workers", says="vLLM servers on sockets that no other user opens")
    says = "are called with a token" if has_token else "are called without a token"
    return Rule(about="workers", says=f"vLLM servers that others run {says}", is_open=not has_token)


def _without_path(kept: Retention) -> Retention:
    return msgspec.structs.replace(kept, where="a file") if "/" in kept.where else kept
