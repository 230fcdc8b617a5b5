"""What all items of one request may take together, kept up to date while they are still coming in."""

from collections.abc import Callable, Sequence

import msgspec

from chiasm.errors import MediaTooLargeError
from chiasm.media.picture.header import Header, peek_header
from chiasm.media.picture.limits import check_header
from chiasm.media.prepare.base import ImagePreparer
from chiasm.media.prepare.items import video_preparer
from chiasm.media.video.container import SNIFF_BYTES
from chiasm.protocol.media import VideoSample
from chiasm.settings import MediaSettings


class _Share(msgspec.Struct):
    num_bytes: int = 0
    num_pixels: int = 0
    num_tiles: int = 0
    num_tokens: int = 0


class RequestBudget:
    """Sums of one request.

    Bytes, pixels and tiles of a reference that stands twice count once, its visual tokens twice. `repeats[i]` says how
    often the i-th distinct reference stands in the request. With no preparer, tiles and tokens are not counted. Belongs
    to one event loop.
    """

    def __init__(self, settings: MediaSettings, preparer: ImagePreparer | None, repeats: Sequence[int]) -> None:
        self._settings = settings
        self._preparer = preparer
        self._repeats = repeats
        self._shares = [_Share() for _ in repeats]

    def take_bytes(self, position: int, num_bytes: int) -> None:
        """State how many bytes a reference has so far. Raises `MediaTooLargeError`."""
        self._shares[position].num_bytes = num_bytes
        total, limit = sum(share.num_bytes for share in self._shares), self._settings.max_request_bytes
        if total > limit:
            raise MediaTooLargeError(f"The media of the request hold {total} bytes or more; the limit is {limit}")

    def take_picture(self, position: int, header: Header) -> None:
        """State the header of a reference; again is allowed, the last one counts.

        Raises:
            MediaTooLargeError: This picture or all together are beyond a limit.
            UnsupportedMediaError: Animated, and the settings refuse that.
            MediaRefusedError: The model cannot take a picture of this size.
        """
        check_header(header, self._settings)
        share = self._shares[position]
        share.num_pixels = header.width * header.height
        if self._preparer is not None:
            plan = self._preparer.plan(header.width, header.height)
            self._check_tiles(plan.num_tiles)
            share.num_tiles = plan.num_tiles
            share.num_tokens = plan.num_embeddings * self._repeats[position]
        self._check_pictures()

    def take_video(self, position: int, size: tuple[int, int], sample: VideoSample) -> None:
        """State a video's (width, height) and sample. Of its pixels one frame counts: they are decoded one by one.

        Raises what `take_picture` raises.
        """
        share = self._shares[position]
        share.num_pixels = size[0] * size[1]
        if self._preparer is not None:
            plan = video_preparer(self._preparer).plan(*size, sample)
            share.num_tokens = plan.num_embeddings * self._repeats[position]
        self._check_pictures()

    def give_back(self, position: int) -> None:
        """Let a reference count no more: it is not used, and harms no other."""
        self._shares[position] = _Share()

    def _check_tiles(self, num_tiles: int) -> None:
        limit = self._settings.max_item_tiles
        if num_tiles > limit:
            raise MediaTooLargeError(
                f"The model cuts this picture into {num_tiles} tiles; the limit is {limit}",
                hint="The operator can raise media.max_item_tiles",
            )

    def _check_pictures(self) -> None:
        pixels, max_pixels = sum(share.num_pixels for share in self._shares), self._settings.max_request_pixels
        if pixels > max_pixels:
            raise MediaTooLargeError(
                f"The media of the request have {pixels} pixels together; the limit is {max_pixels}",
                hint="Send fewer or smaller pictures, or fewer frames",
            )
        tiles, max_tiles = sum(share.num_tiles for share in self._shares), self._settings.max_request_tiles
        if tiles > max_tiles:
            raise MediaTooLargeError(
                f"The model cuts the pictures of the request into {tiles} tiles together; the limit is {max_tiles}",
                hint="Send fewer pictures",
            )
        tokens, max_tokens = sum(share.num_tokens for share in self._shares), self._settings.max_visual_tokens
        if tokens > max_tokens:
            raise MediaTooLargeError(
                f"The media of the request take {tokens} visual tokens; the limit is {max_tokens}",
                hint="Send fewer or smaller pictures, or fewer frames",
            )


class EarlySniff:
    """Judges a download by its first bytes: what is no video, or no audio, is not read to its end."""

    def __init__(self, budget: RequestBudget, position: int, require: Callable[[bytes | bytearray], object]) -> None:
        """`require` raises for first bytes of another kind."""
        self._budget = budget
        self._position = position
        self._require = require

    def __call__(self, prefix: bytes | bytearray) -> None:
        """Take note of all bytes so far. Raises `MediaTooLargeError` and `UnsupportedMediaError`."""
        self._budget.take_bytes(self._position, len(prefix))
        if len(prefix) >= SNIFF_BYTES:
            self._require(prefix)


class EarlyLook:
    """Judges a download by its first bytes: format, size and visual tokens are known long before the last byte."""

    def __init__(self, budget: RequestBudget, position: int) -> None:
        self._budget = budget
        self._position = position
        self._next_look_bytes = 1
        self._is_known = False

    def __call__(self, prefix: bytes | bytearray) -> None:
        """Take note of all bytes so far. Raises what `RequestBudget` and `peek_header` raise."""
        self._budget.take_bytes(self._position, len(prefix))
        if self._is_known or len(prefix) < self._next_look_bytes:
            return
        self._next_look_bytes = 2 * len(prefix)
        header = peek_header(prefix)
        if header is not None:
            self._is_known = True
            self._budget.take_picture(self._position, header)
