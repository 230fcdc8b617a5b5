"""From a gateway's receipts to a trace: sizes, times and which media were the same; no content."""

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec

from chiasm.bench.server import ServerView
from chiasm.bench.target import Target
from chiasm.errors import EngineError, InvalidSettingError
from chiasm.observability.receipt import Receipt
from chiasm.simulator.traces.lines import ChiasmLine, TracePicture

MAX_BODY_BYTES = 64 * 2**20
MAX_REQUESTS = 1_000_000
_POLL_S = 2.0
_OK = 200
_UNAUTHORIZED = (401, 403)


class _Owned(msgspec.Struct, frozen=True):
    receipt: Receipt


class _OwnedReceipts(msgspec.Struct, frozen=True):
    receipts: tuple[_Owned, ...] = ()


class _PlainReceipts(msgspec.Struct, frozen=True):
    receipts: tuple[Receipt, ...] = ()


class Collected:
    """Receipts by request, each once.

    Attributes:
        num_skipped: Requests that said nothing of their size: they failed, or generate nothing.
        num_gaps: Looks that found nothing of the look before: the server may have kept fewer than came meanwhile.
    """

    def __init__(self) -> None:
        self._lines: dict[str, ChiasmLine] = {}
        self._skipped: set[str] = set()
        self._last: set[str] = set()
        self.num_gaps = 0

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def num_skipped(self) -> int:
        """See the class."""
        return len(self._skipped)

    def add(self, receipts: Sequence[Receipt]) -> None:
        """Take those of one look that are new. Raises `InvalidSettingError` when there are too many."""
        ids = {one.request_id for one in receipts}
        self.num_gaps += bool(self._last and ids) and self._last.isdisjoint(ids)
        self._last = ids
        for one in receipts:
            line = line_of(one)
            if line is None:
                self._skipped.add(one.request_id)
            else:
                self._lines[one.request_id] = line
        if len(self._lines) + len(self._skipped) > MAX_REQUESTS:
            raise InvalidSettingError(f"More than {MAX_REQUESTS} requests were seen", hint="Export a shorter time.")

    def lines(self) -> bytes:
        """The trace's file, in the order of arrival, the first request at 0."""
        lines = sorted(self._lines.values(), key=lambda one: one.at_s)
        zero_s = lines[0].at_s if lines else 0.0
        encode = msgspec.json.Encoder().encode
        shifted = (msgspec.structs.replace(one, at_s=round(one.at_s - zero_s, 6)) for one in lines)
        return b"".join(encode(one) + b"\n" for one in shifted)


def line_of(receipt: Receipt) -> ChiasmLine | None:
    """What a trace says of a request; None where its receipt does not tell."""
    sizes = (receipt.num_prompt_tokens, receipt.num_output_tokens, receipt.came_unix_s)
    if receipt.outcome != "finished" or not all(sizes):
        return None
    total = sum(one.num_pixels for one in receipt.media)
    each = receipt.num_visual_tokens / total if total else 0.0
    pictures = tuple(
        TracePicture(key=one.key, pixels=one.num_pixels, tokens=max(1, round(each * one.num_pixels)))
        for one in receipt.media
    )
    return ChiasmLine(
        at_s=receipt.came_unix_s,
        request_class="images" if pictures else "text",
        text_tokens=max(receipt.num_prompt_tokens - receipt.num_visual_tokens, 1),
        output_tokens=receipt.num_output_tokens,
        pictures=pictures,
    )


async def collect(
    target: Target,
    found: Collected,
    *,
    is_admin: bool,
    for_s: float,
    on_seen: Callable[[int, float], None] = lambda *_: None,
) -> None:
    """Read a gateway's receipts, once or again and again for a time.

    Args:
        target: The gateway, with its key.
        found: Gets them, also those before an error.
        is_admin: Ask for all tenants' receipts, which takes a key with the scope admin; else those of the key's own.
        for_s: How long to go on, since a gateway keeps only so many; 0 reads once.
        on_seen: Told how many there are, and after how many seconds.

    Raises:
        EngineError: The gateway does not answer, or not with receipts.
        InvalidSettingError: The key does not open them, or there are too many.
    """
    started_s = time.monotonic()
    async with ServerView(target) as server:
        while True:
            found.add(await _receipts(server, is_admin=is_admin))
            elapsed_s = time.monotonic() - started_s
            on_seen(len(found), elapsed_s)
            if elapsed_s >= for_s:
                return
            await asyncio.sleep(min(_POLL_S, for_s - elapsed_s))


async def _receipts(server: ServerView, *, is_admin: bool) -> list[Receipt]:
    async with server.answer("GET", f"/{'admin' if is_admin else 'debug'}/receipts") as response:
        status, body = response.status, await response.content.read(MAX_BODY_BYTES + 1)
        while len(body) <= MAX_BODY_BYTES and not response.content.at_eof():
            body += await response.content.read(MAX_BODY_BYTES + 1 - len(body))
    if status in _UNAUTHORIZED:
        raise InvalidSettingError(
            f"The key does not open receipts (status {status})",
            hint="--all-tenants takes a key with the scope admin; without it, any key of the server.",
        )
    if status != _OK or len(body) > MAX_BODY_BYTES:
        raise EngineError(f"The server answered with status {status} and {len(body)} bytes, not with receipts")
    try:
        if is_admin:
            return [one.receipt for one in msgspec.json.decode(body, type=_OwnedReceipts).receipts]
        return list(msgspec.json.decode(body, type=_PlainReceipts).receipts)
    except msgspec.MsgspecError as error:
        raise EngineError(f"What the server sent are no receipts: {error}") from error
