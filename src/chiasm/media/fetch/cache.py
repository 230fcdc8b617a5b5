"""Downloads kept for the next request of the same tenant, by the rules of HTTP and stricter ones of our own."""

import re
from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from chiasm.media.fetch.policy import HttpUrl
from chiasm.settings import MediaSettings

_STRONG_TAG = re.compile(r'"[!#-~]{1,256}"')
_MAX_IDENTITIES = 64
_Place = tuple[str, HttpUrl]

LOOKUPS = ("hit", "revalidated", "changed", "miss")
"""What came of asking for a URL: its server was not asked, said that it has not changed, sent it anew, or nothing of it
was kept."""


class Download(msgspec.Struct, frozen=True):
    """The body of an answer, its `content_identity`, and the media type it claims."""

    data: bytes
    content: str
    label: str


class Kept(msgspec.Struct):
    """A download, the validator that its server gave it, and what items were made of it. Times are `now_s`.

    Until `fresh_until_s` the server need not be asked; `expires_at_s` is when it goes, whatever the server says.
    """

    download: Download
    tag: str
    fresh_until_s: float
    expires_at_s: float
    identities: set[str] = msgspec.field(default_factory=set)


class FetchCache:
    """Bounded in bytes and entries; the longest unused go first. Belongs to one event loop. `lookups` counts `LOOKUPS`.

    What one tenant fetched is never given to another. An entry is used only while its server confirms its strong ETag,
    or has called it immutable and its `max-age` has not passed. What is too old leaves memory at the next download, or
    when somebody asks how much there is. Downloads during which something was deleted (`num_deletions`) are not kept:
    they may be of it.
    """

    def __init__(self, settings: MediaSettings) -> None:
        self._settings = settings
        self._kept: OrderedDict[_Place, Kept] = OrderedDict()
        self.num_bytes = 0
        self.num_deletions = 0
        self.lookups = dict.fromkeys(LOOKUPS, 0)

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, tenant: str, url: HttpUrl, now_s: float) -> Kept | None:
        """Return what was kept of a URL. The caller still has to ask its server, or see that it is fresh."""
        self.expire(now_s)
        kept = self._kept.get((tenant, url))
        if kept is not None:
            self._kept.move_to_end((tenant, url))
        return kept

    def keep(self, tenant: str, url: HttpUrl, download: Download, headers: Mapping[str, str], now_s: float) -> None:
        """Keep an answer in place of an older one, if its headers allow that."""
        self.expire(now_s)
        place, tag = (tenant, url), _tag(headers)
        if place in self._kept:
            self._drop(place)
        if tag is None or len(download.data) > self._settings.fetch_cache_bytes:
            return
        fresh_until_s = now_s + self._fresh_s(headers)
        self._kept[place] = Kept(download, tag, fresh_until_s, now_s + self._settings.fetch_cache_ttl_s)
        self.num_bytes += len(download.data)
        while self.num_bytes > self._settings.fetch_cache_bytes or len(self._kept) > self._settings.fetch_cache_entries:
            self._drop(next(iter(self._kept)))

    def confirm(self, tenant: str, url: HttpUrl, kept: Kept, headers: Mapping[str, str], now_s: float) -> bool:
        """Note that its server says it has not changed. False when the answer names another version.

        The answer may also say that from now on it is not to be kept; then this was its last use.
        """
        if headers.get("ETag", kept.tag) != kept.tag:
            return False
        if not _may_be_kept(headers) and self._kept.get((tenant, url)) is kept:
            self._drop((tenant, url))
        kept.fresh_until_s = now_s + self._fresh_s(headers)
        return True

    def note(self, tenant: str, url: HttpUrl, identity: str) -> None:
        """Note an item that was made of a download, so that deleting the item deletes that too."""
        kept = self._kept.get((tenant, url))
        if kept is None:
            return
        kept.identities.add(identity)
        if len(kept.identities) > _MAX_IDENTITIES:  # a video asked for in ever new frames
            self._drop((tenant, url))

    def expire(self, now_s: float) -> None:
        """Drop what is too old, whoever it belongs to."""
        self._forget([place for place, kept in self._kept.items() if kept.expires_at_s <= now_s])

    def forget_identity(self, identity: str) -> int:
        """Drop the downloads that an item was made of; returns how many there were.

        Those that no item was made of yet, because their requests ended before or go on, may hold it: they go too.
        """
        self.num_deletions += 1
        unnamed = [place for place, kept in self._kept.items() if not kept.identities]
        self._forget(unnamed)
        return self._forget([place for place, kept in self._kept.items() if identity in kept.identities])

    def forget_tenant(self, tenant: str) -> int:
        """Drop a tenant's downloads; returns how many there were."""
        self.num_deletions += 1
        return self._forget([place for place in self._kept if place[0] == tenant])

    def _fresh_s(self, headers: Mapping[str, str]) -> float:
        """How long the server need not be asked, by its word and the settings."""
        rules = _rules(headers)
        if self._settings.fetch_cache != "immutable" or "immutable" not in rules or "no-cache" in rules:
            return 0.0
        return max(_seconds(rules.get("max-age")) - _seconds(headers.get("Age")), 0.0)

    def _forget(self, places: list[_Place]) -> int:
        for place in places:
            self._drop(place)
        return len(places)

    def _drop(self, place: _Place) -> None:
        self.num_bytes -= len(self._kept.pop(place).download.data)


def _tag(headers: Mapping[str, str]) -> str | None:
    """The strong validator of an answer that may be kept; None for every other answer."""
    tag = headers.get("ETag", "")
    return tag if _may_be_kept(headers) and _STRONG_TAG.fullmatch(tag) else None


def _may_be_kept(headers: Mapping[str, str]) -> bool:
    rules = _rules(headers)
    return "no-store" not in rules and "private" not in rules and "*" not in headers.get("Vary", "")


def _rules(headers: Mapping[str, str]) -> dict[str, str]:
    parts = (part.strip().lower().partition("=") for part in headers.get("Cache-Control", "").split(","))
    return {name: value.strip('"') for name, _, value in parts}


def _seconds(text: str | None) -> float:
    return float(text) if text is not None and re.fullmatch(r"[0-9]{1,9}", text) else 0.0
