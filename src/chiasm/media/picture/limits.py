"""What a header may state."""

from chiasm.errors import MediaTooLargeError, UnsupportedMediaError
from chiasm.media.picture.header import Header
from chiasm.settings import MediaSettings


def check_header(header: Header, settings: MediaSettings) -> None:
    """Refuse a picture that is too large, too long or animated against policy.

    Raises:
        MediaTooLargeError: Too many pixels, or one side too much longer than the other.
        UnsupportedMediaError: Animated, and the settings refuse animations.
    """
    size = f"{header.width} x {header.height}"
    num_pixels = header.width * header.height
    if num_pixels > settings.max_item_pixels:
        raise MediaTooLargeError(
            f"The picture has {size} = {num_pixels} pixels; the limit is {settings.max_item_pixels}",
            hint="Send a smaller picture; the model sees a reduced one anyway",
        )
    ratio = max(header.width, header.height) / min(header.width, header.height)
    if ratio > settings.max_aspect_ratio:
        raise MediaTooLargeError(
            f"The picture is {size}: its sides differ {ratio:.0f} times; the limit is {settings.max_aspect_ratio:g}"
        )
    if header.is_animated and settings.animated == "refuse":
        raise UnsupportedMediaError("Animated pictures are not accepted here", hint="Send one frame as PNG or JPEG")
