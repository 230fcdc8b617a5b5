"""Plans of items, whatever their kind."""

from chiasm.errors import UnsupportedMediaError
from chiasm.media.prepare.base import ImagePlan, ImagePreparer, VideoPreparer
from chiasm.protocol.media import MediaItem


def video_preparer(preparer: ImagePreparer) -> VideoPreparer:
    """How the model of a preparer sees videos. Raises `UnsupportedMediaError` when it takes none."""
    found: VideoPreparer | None = getattr(preparer, "video", None)
    if found is None:
        raise UnsupportedMediaError("This model takes no videos", hint="Send frames of it as pictures")
    return found


def plan_of(preparer: ImagePreparer, item: MediaItem) -> ImagePlan:
    """Sizes and counts of an item.

    Raises:
        MediaRefusedError: The model cannot take one of this size.
        UnsupportedMediaError: The model takes no videos, or the item does not say which frames.
    """
    if item.kind == "image":
        return preparer.plan(item.width, item.height)
    if item.video is None:
        raise UnsupportedMediaError("The video does not say which of its frames are meant")
    return video_preparer(preparer).plan(item.width, item.height, item.video)
