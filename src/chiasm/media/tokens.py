"""What a picture or video costs a model, from its headers alone."""

from pathlib import Path

import msgspec

from chiasm.errors import MediaFetchError, MediaTooLargeError
from chiasm.media.inspect import read_video_facts
from chiasm.media.picture.header import Header, peek_header, read_header
from chiasm.media.picture.limits import check_header
from chiasm.media.prepare.base import ImagePlan, ImagePreparer
from chiasm.media.prepare.items import video_preparer
from chiasm.media.video.container import SNIFF_BYTES, sniff_video
from chiasm.settings import MediaSettings

_FIRST_READ_BYTES = 64 * 1024


class MediaTokens(msgspec.Struct, frozen=True, kw_only=True):
    """One medium's facts and its cost for one model. `width` and `height` are upright; `orientation` is a picture's.

    `num_frames` are those looked at of a video. `num_visual_tokens` are embeddings, `num_prompt_tokens` all that the
    medium takes in the prompt; the other fields are those of `ImagePlan`.
    """

    file: str
    format: str
    width: int
    height: int
    orientation: int
    is_animated: bool
    resized: tuple[int, int]
    tiles: tuple[int, int]
    grid_thw: tuple[int, int, int] | None
    num_visual_tokens: int
    num_prompt_tokens: int
    num_frames: int | None = None


def media_tokens(
    file: Path, preparer: ImagePreparer, settings: MediaSettings, num_frames: int | None = None
) -> MediaTokens:
    """Count the tokens of a picture or video file. Decodes nothing, and of a JPEG reads only the first bytes.

    `num_frames` is how many frames are looked at of a video; by default as many as the model has it.

    Raises `MediaError`.
    """
    try:
        if file.exists() and not file.is_file():  # a pipe would be waited for
            raise MediaFetchError(f"{file} is no regular file", hint="Give the path of a picture or video")
        with file.open("rb") as opened:
            is_video = sniff_video(opened.read(SNIFF_BYTES)) is not None
    except OSError as error:
        raise _unreadable(file, error) from error
    return _of_video(file, preparer, settings, num_frames) if is_video else _of_picture(file, preparer, settings)


def _of_picture(file: Path, preparer: ImagePreparer, settings: MediaSettings) -> MediaTokens:
    header = _header_of(file)
    check_header(header, settings)
    plan = preparer.plan(header.width, header.height)
    return _counted(file, header.format, plan, orientation=header.orientation, is_animated=header.is_animated)


def _of_video(file: Path, preparer: ImagePreparer, settings: MediaSettings, num_frames: int | None) -> MediaTokens:
    videos = video_preparer(preparer)
    if (size := file.stat().st_size) > settings.max_item_bytes:
        raise MediaTooLargeError(f"The file holds {size} bytes; the limit is {settings.max_item_bytes}")
    facts = read_video_facts(file.read_bytes(), videos.rule(None, num_frames), settings)
    plan = videos.plan(facts.width, facts.height, facts.sample)
    return _counted(file, facts.container, plan, num_frames=len(facts.sample.indices))


def _counted(
    file: Path,
    kind: str,
    plan: ImagePlan,
    *,
    orientation: int = 1,
    is_animated: bool = False,
    num_frames: int | None = None,
) -> MediaTokens:
    return MediaTokens(
        file=str(file),
        format=kind,
        width=plan.width,
        height=plan.height,
        orientation=orientation,
        is_animated=is_animated,
        num_frames=num_frames,
        resized=plan.resized,
        tiles=plan.tiles,
        grid_thw=plan.grid_thw,
        num_visual_tokens=plan.num_embeddings,
        num_prompt_tokens=plan.num_prompt_tokens,
    )


def _header_of(file: Path) -> Header:
    try:
        with file.open("rb") as opened:
            data = bytearray(opened.read(_FIRST_READ_BYTES))
            while more := opened.read(len(data)):
                # Only a JPEG's header is all before its pixels; others may state rotation or frames after them.
                header = peek_header(data)
                if header is not None and header.format == "jpeg":
                    return header
                data += more
    except OSError as error:
        raise _unreadable(file, error) from error
    return read_header(data)


def _unreadable(file: Path, error: OSError) -> MediaFetchError:
    return MediaFetchError(f"{file} cannot be read: {error.strerror}")
