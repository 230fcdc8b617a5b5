"""What may be fed anything: each function takes bytes, and raises only when something is wrong."""

import io
from collections.abc import Callable

import numpy as np
from PIL import Image

from chiasm.errors import MediaError
from chiasm.media.audio.decode import decode_audio
from chiasm.media.audio.header import read_audio_header
from chiasm.media.data_url import data_url_label, decode_data_url
from chiasm.media.fetch.policy import UrlPolicy
from chiasm.media.picture.decode import decode_pixels
from chiasm.media.picture.header import peek_header, read_header
from chiasm.media.picture.png_pixels import plain_png
from chiasm.media.picture.sniff import MIN_SNIFF_BYTES
from chiasm.media.video.frames import sample_video
from chiasm.media.video.sampling import SamplingRule
from chiasm.settings import MediaSettings

LIMITS = MediaSettings(max_item_pixels=100_000, max_video_frames=200, max_video_s=60, max_audio_s=10)
"""Small: a corrupted size field must be refused, not allocated."""
POLICY = UrlPolicy(
    MediaSettings(allowed_domains=(".example", "10.0.0.1", "[::1]"), allow_http=True, allowed_ports=(80, 443, 8080))
)


def header(data: bytes) -> None:
    """Header parsers: a prefix never says anything else than the whole, but for what follows the pixels."""
    try:
        whole = read_header(data)
    except MediaError:
        whole = None
    for length in (MIN_SNIFF_BYTES, len(data) // 2, len(data)):
        try:
            early = peek_header(data[:length])
        except MediaError:
            continue
        if early is None:
            continue
        assert early.stored_width > 0 or whole is None
        if whole is not None:
            assert (early.format, early.stored_width) == (whole.format, whole.stored_width)


def decode(data: bytes) -> None:
    """The whole check step and the decoders: a picture of the stated size, or a coded refusal."""
    try:
        pixels = decode_pixels(data, LIMITS)
    except MediaError:
        return
    stated = read_header(data)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (stated.height, stated.width, 3)


def png(data: bytes) -> None:
    """What the short way through PNG takes, Pillow takes with the same pixels."""
    try:
        stated = read_header(data)
    except MediaError:
        return
    if stated.format != "png" or stated.width * stated.height > LIMITS.max_item_pixels:
        return
    pixels = plain_png(data)
    if pixels is not None:
        with Image.open(io.BytesIO(data)) as image:
            assert np.array_equal(pixels, np.asarray(image.convert("RGB")))


def data_url(data: bytes) -> None:
    """Data URLs: a payload within the limit, or a coded refusal that does not quote it."""
    url = data.decode("latin-1")
    try:
        data_url_label(url)
        assert len(decode_data_url(url, 1000)) <= 1000
    except MediaError as error:
        _quotes_nothing(error, url.partition(",")[2])


def url(data: bytes) -> None:
    """URLs: what passes leads to a host that is allowed, and to no address that is not."""
    text = data.decode("latin-1")
    try:
        checked = POLICY.check(text)
    except MediaError as error:
        _quotes_nothing(error, text)
        return
    assert checked.host.endswith(".example") or checked.host in ("10.0.0.1", "::1")
    assert checked.port in (80, 443, 8080)


def _quotes_nothing(error: MediaError, text: str) -> None:
    assert len(text) < 80 or text not in str(error)


def video(data: bytes) -> None:
    """Containers and decoders of videos: frames in order and of one size, or a coded refusal."""
    try:
        facts, frames = sample_video(data, SamplingRule(fps=None, num_frames=4, patch_frames=1), LIMITS)
        found = list(frames)
    except MediaError:
        return
    assert [frame.index for frame in found] == sorted({frame.index for frame in found})
    assert len({frame.pixels.shape for frame in found}) == 1
    assert facts.num_frames <= LIMITS.max_video_frames


def audio(data: bytes) -> None:
    """Headers and decoders of audio: samples within the limits, or a coded refusal."""
    try:
        facts = read_audio_header(data, LIMITS)
        samples = decode_audio(data, 16_000, LIMITS)
    except MediaError:
        return
    assert facts.num_channels <= LIMITS.max_audio_channels
    assert 0 < len(samples) <= 16_000 * LIMITS.max_audio_s + 1
    assert np.isfinite(samples).all()


TARGETS: dict[str, Callable[[bytes], None]] = {
    "header": header,
    "decode": decode,
    "png": png,
    "data_url": data_url,
    "url": url,
    "video": video,
    "audio": audio,
}
