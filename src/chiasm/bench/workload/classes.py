"""Classes of requests: what the load consists of."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from chiasm.errors import InvalidSettingError
from chiasm.settings.finite import decode_toml

Kind = Literal["chat", "completions", "embeddings", "rerank"]

PATHS: dict[Kind, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "embeddings": "/v1/embeddings",
    "rerank": "/v1/rerank",
}

_SIDE_STEP = 32


class RequestClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests that are alike. `weight` is the class's share of the load, beside the other classes' weights.

    `image_tokens` sets the size of pictures by a budget instead of by sides: `pixels_per_token` pixels each (1024 for a
    model that merges 2 x 2 patches of 16 x 16), with the ratio of the sides kept. `image_reuse` is the probability that
    a picture is one that was sent before; all others are unique. Videos have 24 frames a second. `texts` is the number
    of inputs of an embeddings request, or of documents of a rerank request. A share of `cancel_share` of the requests
    is given up by the client after `cancel_after_s`.
    """

    name: Annotated[str, Meta(min_length=1, max_length=64)] = "all"
    weight: Annotated[float, Meta(gt=0)] = 1.0
    kind: Kind = "chat"
    text_tokens: Annotated[int, Meta(ge=1, le=1_000_000)] = 64
    texts: Annotated[int, Meta(ge=1, le=10_000)] = 1
    output_tokens: Annotated[int, Meta(ge=1, le=1_000_000)] = 64
    images: Annotated[int, Meta(ge=0, le=1000)] = 0
    image_width: Annotated[int, Meta(ge=8, le=16_384)] = 448
    image_height: Annotated[int, Meta(ge=8, le=16_384)] = 448
    image_tokens: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    pixels_per_token: Annotated[int, Meta(ge=1)] = 1024
    image_format: Literal["jpeg", "png", "webp"] = "jpeg"
    image_reuse: Annotated[float, Meta(ge=0, le=1)] = 0.0
    videos: Annotated[int, Meta(ge=0, le=100)] = 0
    video_width: Annotated[int, Meta(ge=16, le=4096)] = 448
    video_height: Annotated[int, Meta(ge=16, le=4096)] = 448
    video_seconds: Annotated[float, Meta(gt=0, le=600)] = 5.0
    cancel_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    cancel_after_s: Annotated[float, Meta(gt=0)] = 1.0

    @property
    def image_size(self) -> tuple[int, int]:
        """Width and height of the class's pictures."""
        if self.image_tokens is None:
            return self.image_width, self.image_height
        scale = (self.image_tokens * self.pixels_per_token / (self.image_width * self.image_height)) ** 0.5
        return _rounded(self.image_width * scale), _rounded(self.image_height * scale)

    @property
    def video_size(self) -> tuple[int, int]:
        """Width and height of the class's videos: even numbers."""
        return self.video_width // 2 * 2, self.video_height // 2 * 2


class _Mix(msgspec.Struct, forbid_unknown_fields=True):
    classes: list[RequestClass] = msgspec.field(name="class")


def read_mix(path: Path) -> tuple[RequestClass, ...]:
    """Read classes from a TOML file, one `[[class]]` each.

    Raises:
        InvalidSettingError: The file cannot be read, or is no such file.
    """
    try:
        classes = decode_toml(path.read_bytes(), _Mix).classes
    except OSError as error:
        raise InvalidSettingError(f"'{path}' cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidSettingError(
            f"'{path}' is no mix of request classes: {error}",
            hint='One table per class: [[class]], then name = "text", weight = 3, output_tokens = 64, ...',
        ) from error
    return checked(classes)


def checked(classes: Sequence[RequestClass]) -> tuple[RequestClass, ...]:
    """The classes, if they make a load. Raises `InvalidSettingError`."""
    names = [one.name for one in classes]
    if not names:
        raise InvalidSettingError("There is no class of requests", hint="Write at least one [[class]]")
    if len(set(names)) < len(names):
        raise InvalidSettingError("Two classes have the same name", hint="Names tell the classes apart in the results")
    for one in classes:
        if (one.images or one.videos) and one.kind != "chat":
            raise InvalidSettingError(f"Class '{one.name}' has pictures or videos, which only kind 'chat' can carry")
    return tuple(classes)


def _rounded(side: float) -> int:
    return max(_SIDE_STEP, round(side / _SIDE_STEP) * _SIDE_STEP)
