"""Any pixel mode to RGB, by stated rules.

Transparent pixels are composited on a background, never just stripped of their alpha. Sixteen-bit grey is scaled by
dropping the low byte, as Pillow does for sixteen-bit colour, so that the same picture stored either way looks the same.
"""

import numpy as np
from PIL import Image

from chiasm.errors import UnsupportedMediaError

_GREY16 = ("I;16", "I;16B", "I;16L", "I;16N")
_UNSCALED = ("I", "F")  # 32-bit samples
_BITS_PER_SAMPLE, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0


def to_rgb(image: Image.Image, background: tuple[int, int, int], png_depth: int | None = None) -> Image.Image:
    """Return an RGB picture of the same size. `png_depth` is the stored bits per sample of a PNG file.

    Raises:
        UnsupportedMediaError: 32-bit samples, whose range is not stated anywhere.
    """
    if image.mode in _UNSCALED:
        raise UnsupportedMediaError("Pictures with 32-bit samples are not supported", hint="Scale it to 8 or 16 bits")
    if image.mode in _GREY16:
        image = _grey8(image)
    elif png_depth is not None:
        _scale_transparent_colour(image, png_depth)
    if image.has_transparency_data:
        return _composite(image.convert("RGBA"), background)
    return image if image.mode == "RGB" else image.convert("RGB")


def _composite(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    if image.getchannel("A").getextrema() == (255, 255):
        return image.convert("RGB")
    canvas = Image.new("RGB", image.size, background)
    canvas.paste(image, (0, 0), image)
    return canvas


def _grey8(image: Image.Image) -> Image.Image:
    samples = np.asarray(image)
    tags = getattr(image, "tag_v2", {})  # TIFF may hold fewer bits than sixteen, and black and white swapped
    scaled = (samples >> (tags.get(_BITS_PER_SAMPLE, (16,))[0] - 8)).astype(np.uint8)
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        scaled = 255 - scaled
    transparent = image.info.get("transparency")
    if transparent is None:
        return Image.fromarray(scaled)
    alpha = np.where(samples == transparent, 0, 255).astype(np.uint8)
    return Image.merge("LA", (Image.fromarray(scaled), Image.fromarray(alpha)))


def _scale_transparent_colour(image: Image.Image, depth: int) -> None:
    """Bring the colour that a PNG names as transparent from stored samples to the 8-bit samples in memory."""
    colour = image.info.get("transparency")
    if image.mode == "L" and isinstance(colour, int) and depth < 8:
        image.info["transparency"] = colour * (255 // ((1 << depth) - 1))
    elif image.mode == "RGB" and isinstance(colour, tuple) and depth == 16:
        image.info["transparency"] = tuple(sample >> 8 for sample in colour)
