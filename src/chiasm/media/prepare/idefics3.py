"""Idefics3 and SmolVLM: the picture is cut into square tiles, followed by an overview tile of the whole."""

import math
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Self

import msgspec
from PIL import Image

from chiasm.errors import UnsupportedModelError
from chiasm.media.kernels.base import Pixels
from chiasm.media.kernels.registry import kernels
from chiasm.media.prepare.base import ImagePlan, PreparedImage
from chiasm.media.prepare.model_files import tokenizer_facts
from chiasm.media.prepare.output import new_output
from chiasm.media.prepare.pixels import (
    COMMON_DEFAULTS,
    HALF,
    normalization_table,
    pixels_of,
    revision_of,
    settings_of,
    size_of,
    squares,
)

MAX_SIDE = 4096
BORDER_TOKEN = "<fake_token_around_image>"  # noqa: S105 - a token of the vocabulary
OVERVIEW_NAME = "<global-img>"
_DEFAULTS: dict[str, Any] = COMMON_DEFAULTS | {
    "image_mean": HALF,
    "image_std": HALF,
    "resample": 1,
    "size": {"longest_edge": 4 * 364},
    "max_image_size": {"longest_edge": 364},
    "do_image_splitting": True,
}


CountTokens = Callable[[str], int]
"""How many tokens a text has when it stands alone between two tokens that the tokenizer cuts out."""


def tile_name(row: int, column: int) -> str:
    """What announces a tile; rows and columns count from 0."""
    return f"<row_{row + 1}_col_{column + 1}>"


class Idefics3Preparer:
    """`Idefics3ImageProcessor`, `SmolVLMImageProcessor`. Floats: `pixel_values` [tiles, channels, side, side].

    Tiles of a picture never need padding, so there is no mask: all of it would be true. Names of tiles are tokens in
    SmolVLM's vocabulary and plain text in Idefics3's; counting plain text takes `count_tokens`.
    """

    def __init__(
        self,
        directory: Path,
        processor: Mapping[str, Any],
        model: Mapping[str, Any],
        count_tokens: CountTokens | None,
    ) -> None:
        settings = settings_of("Idefics3ImageProcessor", processor, _DEFAULTS)
        self._longest_edge = _longest_edge("size", settings)
        self._side = _longest_edge("max_image_size", settings)
        self._splits: bool = settings["do_image_splitting"]
        self._resample: int = settings["resample"]
        self._table = normalization_table(settings)
        self._tile_embeddings = _embeddings_per_tile(model, self._side)
        most = math.ceil(min(self._longest_edge, MAX_SIDE) / self._side) if self._splits else 0
        self._text = _TextTokens.of(directory, most, count_tokens)
        counts = {"tile_embeddings": self._tile_embeddings, "text_tokens": self._text.as_list()}
        self._revision = revision_of("idefics3", settings | counts)

    @property
    def revision(self) -> str:
        """See `ImagePreparer`."""
        return self._revision

    def least_size(self, width: int, height: int) -> None:
        """See `ImagePreparer`."""

    def plan(self, width: int, height: int) -> ImagePlan:
        """See `ImagePreparer`."""
        size = self._split_size(*self._scaled(width, height)) if self._splits else (self._side, self._side)
        columns, rows = (length // self._side for length in size)
        is_split = rows * columns > 1
        num_tiles = rows * columns + 1 if is_split else 1
        num_embeddings = num_tiles * self._tile_embeddings
        text = self._text.between(rows, columns) if is_split else 0
        return ImagePlan(
            width=width,
            height=height,
            num_embeddings=num_embeddings,
            # a border before each tile and one at the very end
            num_prompt_tokens=num_embeddings + num_tiles + 1 + self._text.overview + text,
            tiles=(rows, columns),
            resized=size,
        )

    def prepare(self, picture: Image.Image | Pixels, size: tuple[int, int] | None = None) -> PreparedImage:
        """See `ImagePreparer`."""
        pixels = pixels_of(picture)
        plan = self.plan(*(size or size_of(pixels)))
        pixels = kernels().resize(pixels, self._scaled(plan.width, plan.height), self._resample)
        # The overview is a reduction of what the tiles show, so that is needed as a picture, too.
        pixels = kernels().resize(pixels, plan.resized, self._resample)
        num_tiles = math.prod(plan.tiles)
        num_tiles = num_tiles if num_tiles > 1 else 0
        values = new_output((num_tiles + 1, 3, self._side, self._side))
        if num_tiles:
            squares(pixels, plan.resized, self._resample, values[:num_tiles])
        squares(pixels, (self._side, self._side), self._resample, values[num_tiles:])
        return PreparedImage(plan, {"pixel_values": values, "table": self._table})

    def _scaled(self, width: int, height: int) -> tuple[int, int]:
        """The longer side set to `longest_edge`, the shorter one in proportion and even, none above 4096."""
        ratio = width / height
        if width >= height:
            width, height = self._longest_edge, _even(int(self._longest_edge / ratio))
        else:
            width, height = _even(int(self._longest_edge * ratio)), self._longest_edge
        width, height = max(width, 1), max(height, 1)
        ratio = width / height
        if width >= height and width > MAX_SIDE:
            width, height = MAX_SIDE, int(MAX_SIDE / ratio)
        elif height > width and height > MAX_SIDE:
            width, height = int(MAX_SIDE * ratio), MAX_SIDE
        return max(width, 1), max(height, 1)

    def _split_size(self, width: int, height: int) -> tuple[int, int]:
        """Whole tiles: first the longer side up to a multiple, then the other one in proportion, also up."""
        ratio = width / height
        if width >= height:
            width = self._whole(width)
            return width, self._whole(int(width / ratio))
        height = self._whole(height)
        return self._whole(int(height * ratio)), height

    def _whole(self, length: int) -> int:
        return math.ceil(length / self._side) * self._side


class _TextTokens(msgspec.Struct, frozen=True):
    """Tokens of the text between tiles: `tiles[row][column]` and `overview` of names, `newlines` of two line ends."""

    tiles: list[list[int]]
    overview: int
    newlines: int

    @classmethod
    def of(cls, directory: Path, most: int, count_tokens: CountTokens | None) -> Self:
        """Count for up to `most` rows and columns."""
        facts = tokenizer_facts(directory)
        names = [[tile_name(row, column) for column in range(most)] for row in range(most)]
        if count_tokens is not None:
            tiles = [[count_tokens(name) for name in row] for row in names]
            return cls(tiles, count_tokens(OVERVIEW_NAME), count_tokens("\n\n"))
        missing = [name for name in (OVERVIEW_NAME, *chain.from_iterable(names)) if name not in facts.added]
        if missing:
            raise UnsupportedModelError(
                f"the tokenizer of {directory.name} has no token for {len(missing)} picture tags like {missing[0]}",
                hint="only the engine, which has the tokenizer, can count this model's picture tokens",
            )
        return cls([[1] * most] * most, 1, 1 if facts.merges_newlines else 2)

    def between(self, rows: int, columns: int) -> int:
        """Names of all tiles, a line end after each row but the last, two line ends before the overview."""
        return sum(sum(row[:columns]) for row in self.tiles[:rows]) + rows - 1 + self.newlines

    def as_list(self) -> list[int]:
        """All counts in one list, to be hashed."""
        return [*chain.from_iterable(self.tiles), self.overview, self.newlines]


def _even(length: int) -> int:
    return length + length % 2


def _longest_edge(name: str, settings: Mapping[str, Any]) -> int:
    edge = settings[name].get("longest_edge")
    if edge is None:
        raise UnsupportedModelError(
            f"an Idefics3 image processor with {name}={settings[name]} is not supported, it needs 'longest_edge'",
            hint="serve it by vLLM: chiasm serve --engine vllm --topology agg",
        )
    return int(edge)


def _embeddings_per_tile(model: Mapping[str, Any], side: int) -> int:
    patches = side // (model.get("vision_config") or {}).get("patch_size", 32)
    return int(patches**2 / model.get("scale_factor", 2) ** 2)
