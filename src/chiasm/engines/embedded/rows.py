"""The embedding rows of a prompt's pictures, as far as they are there."""

from collections.abc import Iterable

import torch


class PictureRows:
    """Rows [rows, width] of a prompt's pictures in order, from `first_row` of the prompt on; grows at its end."""

    def __init__(self, first_row: int = 0) -> None:
        self._parts: list[tuple[int, torch.Tensor]] = []
        self._end = first_row

    def extend(self, parts: Iterable[torch.Tensor]) -> None:
        """The next pictures' rows, one tensor each; kept, not copied."""
        for part in parts:
            self._parts.append((self._end, part))
            self._end += len(part)

    def between(self, start: int, end: int) -> list[torch.Tensor]:
        """Rows of the prompt from `start` to `end`, in pieces."""
        assert self._parts and self._parts[0][0] <= start and end <= self._end, "rows that are not there are covered"
        pieces = ((first, part[max(start - first, 0) : max(end - first, 0)]) for first, part in self._parts)
        return [piece for _, piece in pieces if len(piece)]
