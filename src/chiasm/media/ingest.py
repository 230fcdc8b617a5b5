"""The one door media come in through: references to checked, identified items, in order.

Fetching and parsing happen here and nowhere else. Pixels are not decoded: what later stages need to know follows from
the headers, and whether anything must be decoded at all is decided with the identities.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial

import msgspec

from chiasm.errors import DeadlineExceededError, MediaError, MediaTooLargeError, UnsupportedMediaError
from chiasm.media.audio.container import require_audio
from chiasm.media.audio.header import AudioHeader
from chiasm.media.budget import EarlyLook, EarlySniff, RequestBudget
from chiasm.media.data_url import decode_data_url, decode_payload
from chiasm.media.fetch.client import HttpFetcher
from chiasm.media.fetch.files import read_file
from chiasm.media.fetch.policy import HttpUrl, UrlPolicy
from chiasm.media.fetch.resolver import Lookup, system_lookup
from chiasm.media.identity import content_identity, pixel_identity
from chiasm.media.inspect import (
    Inspect,
    Inspected,
    inspect_audio,
    inspect_picture,
    read_audio_facts,
    read_video_facts,
    video_inspector,
)
from chiasm.media.isolation.pool import ProcessPool
from chiasm.media.item_errors import naming_item
from chiasm.media.picture.sniff import is_avif
from chiasm.media.prepare.base import ImagePreparer
from chiasm.media.prepare.items import video_preparer
from chiasm.media.reference import DataUrl, FileUrl, MediaReference, parse_reference
from chiasm.media.spool import Spool, SpoolLease
from chiasm.media.threads import Threads
from chiasm.media.video.container import require_video
from chiasm.observability.receipt import StageClock
from chiasm.protocol.media import InlineSource, MediaItem
from chiasm.settings import MediaSettings

__all__ = ["AudioItem", "MediaIngest", "MediaReference"]

logger = logging.getLogger(__name__)
_MAX_CHARS_HERE = 128 * 1024
"""A data URL up to this size is decoded and hashed on the event loop, in a tenth of a millisecond: changing threads
takes longer (benchmarks/notes/gateway_picture.md)."""

_Loaded = tuple[bytes, str | None, Inspected]
_Key = tuple[str, str, float | None, int | None]


class _Wanted(msgspec.Struct, frozen=True):
    """A distinct reference: its first place in the request, and its position among the distinct ones."""

    index: int
    position: int
    reference: MediaReference
    source: DataUrl | FileUrl | HttpUrl
    inspect: Inspect


class AudioItem(msgspec.Struct, frozen=True):
    """A piece of audio, checked: the sha256 of its bytes, its facts, and the bytes."""

    identity: str
    header: AudioHeader
    data: bytes


class MediaIngest:
    """Turns the references of requests into items. Belongs to one event loop; `aclose` when done.

    Work that blocks or computes runs in `decode_threads` threads; what waits for them is bounded by the number of
    admitted requests. Without a preparer visual tokens are not limited. With a spool, which the caller closes, items
    name files of it. With decoder processes, headers that only a decoding library can read are read there too: those
    of videos, audio and AVIF.
    """

    def __init__(
        self,
        settings: MediaSettings,
        preparer: ImagePreparer | None,
        *,
        spool: Spool | None = None,
        lookup: Lookup = system_lookup,
    ) -> None:
        self._settings = settings
        self._preparer = preparer
        self._spool = spool
        self._policy = UrlPolicy(settings)
        self._fetcher = HttpFetcher(settings, self._policy, lookup)
        self._threads = Threads(settings.decode_threads, "chiasm-ingest")
        self._processes = ProcessPool(settings, 0) if settings.decoder == "processes" else None

    def lease(self) -> SpoolLease | None:
        """Begin to hold media for one request, until it is closed; None where items carry their bytes."""
        return None if self._spool is None else self._spool.lease()

    @property
    def spooled_bytes(self) -> int:
        """What those of all media take."""
        return 0 if self._spool is None else self._spool.num_bytes

    @property
    def kept_bytes(self) -> int:
        """What the kept downloads of all tenants take."""
        return self._fetcher.kept_bytes

    @property
    def fetch_lookups(self) -> Mapping[str, int]:
        """What came of looking for kept downloads, by outcome."""
        return self._fetcher.lookups

    def num_spooled(self, identity: str) -> int:
        """Files of the spool that hold a medium's bytes for requests under way."""
        return 0 if self._spool is None else self._spool.num_files_of(identity)

    def forget(self, *, identity: str | None = None, tenant: str | None = None) -> int:
        """Drop the kept downloads of an item or of a tenant; returns how many there were."""
        return self._fetcher.forget(identity, tenant)

    async def collect(
        self,
        references: Sequence[MediaReference],
        deadline_s: float,
        clock: StageClock | None = None,
        lease: SpoolLease | None = None,
        tenant: str = "",
    ) -> list[MediaItem]:
        """Return one item per reference, in order.

        Every reference is judged before the first is fetched. Then all are fetched at once, the same URL only once,
        and the first failure cancels the rest. Cancelling the caller cancels all of them.

        Args:
            references: As they stand in the request.
            deadline_s: Seconds that are left of the request's deadline.
            clock: Gets the spans 'fetch' and, inside of it, 'check' for each item that is not a repetition.
            lease: Holds the files of the items; without one, items carry their bytes.
            tenant: Whose kept downloads may be used, where the settings keep any.

        Raises:
            MediaError: One of the tree, with the item's index, its `param` and the cause.
            OverloadedError: The spool is full.
            DeadlineExceededError: The request's deadline passed.
            EngineError: No decoder process could be started for a video.
        """
        self._check_count(references)
        wanted = self._distinct(references)
        counts = Counter(map(_key, references))
        budget = RequestBudget(self._settings, self._preparer, [counts[key] for key in wanted])
        try:
            if len(wanted) == 1:  # as in most requests, which need no tasks
                [one] = wanted.values()
                async with asyncio.timeout(deadline_s):
                    return [await self._item(one, budget, clock, lease, tenant)] * len(references)
            async with asyncio.timeout(deadline_s), asyncio.TaskGroup() as group:
                tasks = {
                    key: group.create_task(self._item(one, budget, clock, lease, tenant)) for key, one in wanted.items()
                }
        except TimeoutError:
            raise DeadlineExceededError(f"The media of the request took longer than {deadline_s:.3g} s") from None
        except BaseExceptionGroup as failures:
            raise _first_failure(failures) from None
        return [tasks[_key(reference)].result() for reference in references]

    async def listen(self, reference: MediaReference, deadline_s: float) -> AudioItem:
        """Return one piece of audio, fetched and checked by the same rules. Raises as `collect` does."""
        with naming_item(0, reference.param):
            source = parse_reference(reference, self._policy)
        wanted = _Wanted(0, 0, reference, source, self._inspector(reference))
        try:
            async with asyncio.timeout(deadline_s):
                with naming_item(0, reference.param):
                    data, label, found = await self._load(wanted, RequestBudget(self._settings, None, [1]), "")
        except TimeoutError:
            raise DeadlineExceededError(f"The audio took longer than {deadline_s:.3g} s") from None
        _log_mislabelled(0, label, found)
        assert found.audio is not None
        return AudioItem(found.identity, found.audio, data)

    async def collect_each(
        self,
        references: Sequence[MediaReference],
        deadline_s: float,
        clock: StageClock | None = None,
        lease: SpoolLease | None = None,
        tenant: str = "",
    ) -> list[MediaItem | MediaError]:
        """Return one item per reference, in order, or what is wrong with it; one failure ends no other.

        Otherwise as `collect`: limits of the request as a whole refuse those that go beyond them, and what is no fault
        of a reference is raised.
        """
        self._check_count(references)
        wanted: dict[_Key, _Wanted] = {}
        failures: dict[_Key, MediaError] = {}
        for index, reference in enumerate(references):
            try:
                [(key, one)] = self._distinct([reference], index).items()
            except MediaError as error:
                failures.setdefault(_key(reference), error)
            else:
                wanted.setdefault(key, msgspec.structs.replace(one, position=len(wanted)))
        counts = Counter(map(_key, references))
        budget = RequestBudget(self._settings, self._preparer, [counts[key] for key in wanted])
        found: dict[_Key, MediaItem] = {}

        async def take(key: _Key, one: _Wanted) -> None:
            try:
                found[key] = await self._item(one, budget, clock, lease, tenant)
            except MediaError as error:
                failures[key] = error
                budget.give_back(one.position)

        try:
            async with asyncio.timeout(deadline_s), asyncio.TaskGroup() as group:
                for key, one in wanted.items():
                    group.create_task(take(key, one))
        except TimeoutError:
            raise DeadlineExceededError(f"The media of the request took longer than {deadline_s:.3g} s") from None
        except BaseExceptionGroup as errors:
            raise _first_failure(errors) from None
        return [found.get(_key(reference)) or failures[_key(reference)] for reference in references]

    async def aclose(self) -> None:
        """Close connections and threads. Open `collect` calls should have ended."""
        await self._fetcher.aclose()
        self._threads.close()
        if self._processes is not None:
            self._processes.close()

    def _check_count(self, references: Sequence[MediaReference]) -> None:
        if len(references) > self._settings.max_items:
            raise MediaTooLargeError(
                f"The request has {len(references)} media items; the limit is {self._settings.max_items}"
            )

    def _distinct(self, references: Sequence[MediaReference], first_index: int = 0) -> dict[_Key, _Wanted]:
        """One entry per distinct reference; the first of them has `first_index` in the request."""
        wanted: dict[_Key, _Wanted] = {}
        for index, reference in enumerate(references, first_index):
            with naming_item(index, reference.param):
                if reference.kind == "audio":
                    raise UnsupportedMediaError("This model takes no audio", hint="Send pictures, videos or text")
                source = parse_reference(reference, self._policy)
                inspect = self._inspector(reference)
            wanted.setdefault(_key(reference), _Wanted(index, len(wanted), reference, source, inspect))
        return wanted

    def _inspector(self, reference: MediaReference) -> Inspect:
        """What reads the headers of a medium: it blocks, and for some kinds asks a decoder process."""
        settings, processes = self._settings, self._processes
        if reference.kind == "image":
            return self._inspect_picture
        if reference.kind == "audio":
            listen = partial(read_audio_facts, settings=settings) if processes is None else processes.listen
            return partial(inspect_audio, read=listen)
        videos = None if self._preparer is None else video_preparer(self._preparer)
        look = partial(read_video_facts, settings=settings) if processes is None else processes.look
        return video_inspector(reference, look, videos)

    def _inspect_picture(self, data: bytes, content: str) -> Inspected:
        if self._processes is not None and is_avif(data):
            return inspect_picture(data, content, self._processes.look_at_picture)
        return inspect_picture(data, content)

    async def _item(
        self,
        wanted: _Wanted,
        budget: RequestBudget,
        clock: StageClock | None,
        lease: SpoolLease | None,
        tenant: str,
    ) -> MediaItem:
        span = nullcontext() if clock is None else clock.stage("fetch", wanted.index)
        with naming_item(wanted.index, wanted.reference.param), span:
            data, label, found = await self._load(wanted, budget, tenant)
            if clock is not None:
                clock.add("check", clock.now_s() - found.check_s, clock.now_s(), wanted.index)
            budget.take_bytes(wanted.position, len(data))
            _take(budget, wanted.position, found)
            identity = await self._identity(found, data)
            if isinstance(wanted.source, HttpUrl):
                self._fetcher.note(tenant, wanted.source, identity)
            source = InlineSource(data) if lease is None else await self._threads.run(lease.hold, identity, data)
        _log_mislabelled(wanted.index, label, found)
        assert found.kind != "audio"  # refused before it was fetched
        return MediaItem(
            kind=found.kind,
            identity=identity,
            format=found.format,
            width=found.width,
            height=found.height,
            is_animated=found.is_animated,
            video=found.video,
            source=source,
        )

    async def _identity(self, found: Inspected, data: bytes) -> str:
        """The item's name; where that is about pixels, they are decoded now that all limits have been kept."""
        if self._settings.identity == "bytes" or found.kind != "image":
            return found.identity
        name = partial(pixel_identity, settings=self._settings) if self._processes is None else self._processes.name
        return await self._threads.run(name, data)

    async def _load(self, wanted: _Wanted, budget: RequestBudget, tenant: str) -> _Loaded:
        """The encoded bytes, the media type they are said to be of, and what they are."""
        source, inspect, limit = wanted.source, wanted.inspect, self._settings.max_item_bytes
        if isinstance(source, DataUrl):
            if source.num_chars > _MAX_CHARS_HERE or wanted.reference.kind != "image":
                return await self._threads.run(_decoded, source, limit, inspect)
            data = _bytes_of(source, limit)
            waits = self._processes is not None and is_avif(data)
            found = await self._threads.run(_named, data, inspect) if waits else _named(data, inspect)
            return data, source.label, found
        if isinstance(source, FileUrl):
            data = await self._threads.run(read_file, source.url, self._settings.allowed_root, limit)
            return data, None, await self._threads.run(_named, data, inspect)
        download = await self._fetcher.fetch(source, _early_look(wanted, budget), tenant)
        found = await self._threads.run(inspect, download.data, download.content)
        return download.data, download.label, found


def _key(reference: MediaReference) -> _Key:
    return reference.kind, reference.url, reference.fps, reference.num_frames


def _take(budget: RequestBudget, position: int, found: Inspected) -> None:
    if found.header is not None:
        budget.take_picture(position, found.header)
    elif found.video is not None:
        budget.take_video(position, (found.width, found.height), found.video)


def _decoded(source: DataUrl, max_bytes: int, inspect: Inspect) -> _Loaded:
    """All that a data URL needs, so that it changes threads once."""
    data = _bytes_of(source, max_bytes)
    return data, source.label, _named(data, inspect)


def _named(data: bytes, inspect: Inspect) -> Inspected:
    """What bytes are that no download has named on their way in; hashing them counts as checking."""
    started = time.perf_counter()
    found = inspect(data, content_identity(data))
    return msgspec.structs.replace(found, check_s=time.perf_counter() - started)


def _bytes_of(source: DataUrl, max_bytes: int) -> bytes:
    payload = source.payload
    return decode_data_url(source.url, max_bytes) if payload is None else decode_payload(payload, max_bytes)


def _early_look(wanted: _Wanted, budget: RequestBudget) -> EarlyLook | EarlySniff:
    kind, position = wanted.reference.kind, wanted.position
    if kind == "image":
        return EarlyLook(budget, position)
    return EarlySniff(budget, position, require_video if kind == "video" else require_audio)


def _first_failure(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Of failures at the same time that of the first item; one that is no `MediaError` goes before all."""
    return min(failures.exceptions, key=lambda error: -1 if not isinstance(error, MediaError) else error.item or 0)


def _log_mislabelled(index: int, label: str | None, found: Inspected) -> None:
    if label is None or (found.kind != "image" and label.startswith(f"{found.kind}/")):
        return
    if label not in (f"image/{found.format}", "image/jpg" if found.format == "jpeg" else None):
        logger.info("Media item %d holds %s, labelled %r", index, found.format, label[:64])
