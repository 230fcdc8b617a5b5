"""The cells of a grid, and the order in which they are measured."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import msgspec

from chiasm.bench.grid.spec import Cache, GridSpec
from chiasm.bench.workload.classes import RequestClass


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """What requests are like: pictures, visual tokens of each, length of answers, and whether they were met before."""

    images: int
    tokens: int
    output: int
    cache: Cache = "cold"

    def __str__(self) -> str:
        pictures = f"{self.images} x {self.tokens} tokens" if self.images else "text"
        return f"{pictures}, output {self.output}" + (", warm" if self.cache == "warm" else "")


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A kind at one load: a share of the baseline's capacity, or a rate."""

    kind: Kind
    load: float

    def __str__(self) -> str:
        return f"{self.kind}, load {self.load:g}"

    @property
    def levels(self) -> dict[str, Any]:
        """Its value of each factor."""
        return {**msgspec.structs.asdict(self.kind), "load": self.load}


def all_cells(spec: GridSpec) -> list[Cell]:
    """Every combination; without pictures neither their size nor whether they were met means anything."""
    found = []
    for images, tokens, output, cache, load in product(
        spec.images, spec.tokens, spec.outputs, spec.caches, spec.loads or spec.rates
    ):
        if images or (tokens == spec.tokens[0] and cache == spec.caches[0]):
            kind = Kind(images=images, tokens=tokens, output=output, cache=cache if images else "cold")
            found.append(Cell(kind=kind, load=load))
    return found


def in_balance(cells: Sequence[Cell], seed: int) -> list[Cell]:
    """All cells, in an order of which every start has each level of each factor about equally often."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    left = rng.sample(list(cells), len(cells))
    seen: Counter[tuple[str, Any]] = Counter()
    order = []
    while left:
        chosen = min(left, key=lambda cell: sum(seen[level] for level in cell.levels.items()))
        left.remove(chosen)
        seen.update(chosen.levels.items())
        order.append(chosen)
    return order


def request_class(kind: Kind, spec: GridSpec) -> RequestClass:
    """The requests of a kind."""
    return RequestClass(
        name="all",
        text_tokens=spec.text_tokens,
        output_tokens=kind.output,
        images=kind.images,
        image_tokens=kind.tokens,
        pixels_per_token=spec.pixels_per_token,
        image_format=spec.image_format,
    )
