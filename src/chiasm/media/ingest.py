"""The one door media come in through: references to checked, identified items, in order.

Fetching and parsing happen here and nowhere else. Pixels are not decoded: what later stages need to know follows from
the headers, and whether anything must be decoded at all is decided with the identities.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext

import msgspec

from chiasm.errors import DeadlineExceededError, MediaError, MediaTooLargeError
from chiasm.media.budget import EarlyLook, RequestBudget
from chiasm.media.data_url import decode_data_url, decode_payload
from chiasm.media.fetch.client import HttpFetcher
from chiasm.media.fetch.files import read_file
from chiasm.media.fetch.policy import HttpUrl, UrlPolicy
from chiasm.media.fetch.resolver import Lookup, system_lookup
from chiasm.media.identity import content_identity
from chiasm.media.item_errors import naming_item
from chiasm.media.picture.header import Header, read_header
from chiasm.media.prepare.base import ImagePreparer
from chiasm.media.reference import DataUrl, FileUrl, MediaReference, parse_reference
from chiasm.media.spool import Spool, SpoolLease
from chiasm.media.threads import Threads
from chiasm.observability.receipt import StageClock
from chiasm.protocol.media import InlineSource, MediaItem
from chiasm.settings import MediaSettings

__all__ = ["MediaIngest", "MediaReference"]

logger = logging.getLogger(__name__)
_MAX_CHARS_HERE = 128 * 1024
"""A data URL up to this size is decoded and hashed on the event loop, in a tenth of a millisecond: changing threads
takes longer (benchmarks/notes/gateway_picture.md)."""

_Checked = tuple[str, Header, float]
"""Identity, header, and the seconds that both took."""
_Loaded = tuple[bytes, str | None, _Checked]


class _Wanted(msgspec.Struct, frozen=True):
    """A distinct reference: its first place in the request, and its position among the distinct ones."""

    index: int
    position: int
    param: str
    source: DataUrl | FileUrl | HttpUrl


class MediaIngest:
    """Turns the references of requests into items. Belongs to one event loop; `aclose` when done.

    Work that blocks or computes runs in `decode_threads` threads; what waits for them is bounded by the number of
    admitted requests. Without a preparer visual tokens are not limited. With a spool, which the caller closes, items
    name files of it.
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

    def lease(self) -> SpoolLease | None:
        """Begin to hold media for one request, until it is closed; None where items carry their bytes."""
        return None if self._spool is None else self._spool.lease()

    def num_spooled(self, identity: str) -> int:
        """Files of the spool that hold a medium's bytes for requests under way."""
        return 0 if self._spool is None else self._spool.num_files_of(identity)

    async def collect(
        self,
        references: Sequence[MediaReference],
        deadline_s: float,
        clock: StageClock | None = None,
        lease: SpoolLease | None = None,
    ) -> list[MediaItem]:
        """Return one item per reference, in order.

        Every reference is judged before the first is fetched. Then all are fetched at once, the same URL only once,
        and the first failure cancels the rest. Cancelling the caller cancels all of them.

        Args:
            references: As they stand in the request.
            deadline_s: Seconds that are left of the request's deadline.
            clock: Gets the spans 'fetch' and, inside of it, 'check' for each item that is not a repetition.
            lease: Holds the files of the items; without one, items carry their bytes.

        Raises:
            MediaError: One of the tree, with the item's index, its `param` and the cause.
            OverloadedError: The spool is full.
            DeadlineExceededError: The request's deadline passed.
        """
        wanted = self._distinct(references)
        counts = Counter(reference.url for reference in references)
        budget = RequestBudget(self._settings, self._preparer, [counts[url] for url in wanted])
        try:
            if len(wanted) == 1:  # as in most requests, which need no tasks
                [one] = wanted.values()
                async with asyncio.timeout(deadline_s):
                    return [await self._item(one, budget, clock, lease)] * len(references)
            async with asyncio.timeout(deadline_s), asyncio.TaskGroup() as group:
                tasks = {url: group.create_task(self._item(one, budget, clock, lease)) for url, one in wanted.items()}
        except TimeoutError:
            raise DeadlineExceededError(f"The media of the request took longer than {deadline_s:.3g} s") from None
        except BaseExceptionGroup as failures:
            raise _first_failure(failures) from None
        return [tasks[reference.url].result() for reference in references]

    async def aclose(self) -> None:
        """Close connections and threads. Open `collect` calls should have ended."""
        await self._fetcher.aclose()
        self._threads.close()

    def _distinct(self, references: Sequence[MediaReference]) -> dict[str, _Wanted]:
        if len(references) > self._settings.max_items:
            raise MediaTooLargeError(
                f"The request has {len(references)} media items; the limit is {self._settings.max_items}"
            )
        wanted: dict[str, _Wanted] = {}
        for index, reference in enumerate(references):
            with naming_item(index, reference.param):
                source = parse_reference(reference, self._policy)
            wanted.setdefault(reference.url, _Wanted(index, len(wanted), reference.param, source))
        return wanted

    async def _item(
        self, wanted: _Wanted, budget: RequestBudget, clock: StageClock | None, lease: SpoolLease | None
    ) -> MediaItem:
        span = nullcontext() if clock is None else clock.stage("fetch", wanted.index)
        with naming_item(wanted.index, wanted.param), span:
            data, label, (identity, header, check_s) = await self._load(
                wanted.source, EarlyLook(budget, wanted.position)
            )
            if clock is not None:
                clock.add("check", clock.now_s() - check_s, clock.now_s(), wanted.index)
            budget.take_bytes(wanted.position, len(data))
            budget.take_picture(wanted.position, header)
            source = InlineSource(data) if lease is None else await self._threads.run(lease.hold, identity, data)
        _log_mislabelled(wanted.index, label, header.format)
        return MediaItem(
            identity=identity,
            format=header.format,
            width=header.width,
            height=header.height,
            is_animated=header.is_animated,
            source=source,
        )

    async def _load(self, source: DataUrl | FileUrl | HttpUrl, look: EarlyLook) -> _Loaded:
        """The encoded bytes, the media type they are said to be of, and what they are."""
        if isinstance(source, DataUrl):
            if source.num_chars <= _MAX_CHARS_HERE:
                return _decoded(source, self._settings.max_item_bytes)
            return await self._threads.run(_decoded, source, self._settings.max_item_bytes)
        if isinstance(source, FileUrl):
            root, limit = self._settings.allowed_root, self._settings.max_item_bytes
            data = await self._threads.run(read_file, source.url, root, limit)
            return data, None, await self._threads.run(_inspect, data)
        download = await self._fetcher.fetch(source, look)
        return download.data, download.label, await self._threads.run(_inspect, download.data)


def _decoded(source: DataUrl, max_bytes: int) -> _Loaded:
    """All that a data URL needs, so that it changes threads once."""
    payload = source.payload
    data = decode_data_url(source.url, max_bytes) if payload is None else decode_payload(payload, max_bytes)
    return data, source.label, _inspect(data)


def _inspect(data: bytes) -> _Checked:
    started = time.perf_counter()
    return content_identity(data), read_header(data), time.perf_counter() - started


def _first_failure(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Of failures at the same time that of the first item; one that is no `MediaError` goes before all."""
    return min(failures.exceptions, key=lambda error: -1 if not isinstance(error, MediaError) else error.item or 0)


def _log_mislabelled(index: int, label: str | None, kind: str) -> None:
    if label is not None and label not in (f"image/{kind}", "image/jpg" if kind == "jpeg" else None):
        logger.info("Media item %d holds %s, labelled %r", index, kind, label[:64])
