"""What a picture costs a model, from its header alone."""

from pathlib import Path

import msgspec

from chiasm.errors import MediaFetchError
from chiasm.media.picture.header import Header, peek_header, read_header
from chiasm.media.picture.limits import check_header
from chiasm.media.prepare.base import ImagePreparer
from chiasm.settings import MediaSettings

_FIRST_READ_BYTES = 64 * 1024


class PictureTokens(msgspec.Struct, frozen=True, kw_only=True):
    """One picture's facts and its cost for one model. `width` and `height` are after EXIF rotation.

    `num_visual_tokens` are embeddings, `num_prompt_tokens` all that the picture takes in the prompt; the other fields
    are those of `ImagePlan`.
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


def picture_tokens(file: Path, preparer: ImagePreparer, settings: MediaSettings) -> PictureTokens:
    """Count the tokens of a picture file. Decodes nothing, and of a JPEG reads only the first bytes.

    Raises `MediaError`.
    """
    header = _header_of(file)
    check_header(header, settings)
    plan = preparer.plan(header.width, header.height)
    return PictureTokens(
        file=str(file),
        format=header.format,
        width=header.width,
        height=header.height,
        orientation=header.orientation,
        is_animated=header.is_animated,
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
        raise MediaFetchError(f"{file} cannot be read: {error.strerror}") from error
    return read_header(data)
