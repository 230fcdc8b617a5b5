"""How many pictures are encoded in one go: as many as others can be made to wait for."""

_KEPT = 0.8
"""Weight of what was known when a batch has been measured."""


class EncodeBudget:
    """Bounds batches by their embeddings and, going by what embeddings have cost so far, by their time."""

    def __init__(self, max_embeddings: int, max_batch_s: float) -> None:
        self._max_embeddings = max_embeddings
        self._max_batch_s = max_batch_s
        self._each_s: float | None = None

    @property
    def num_embeddings(self) -> int:
        """Room of the next batch; its first picture may exceed it. No room for a second one before one was seen."""
        if self._each_s is None:
            return 1
        return max(1, min(self._max_embeddings, int(self._max_batch_s / self._each_s)))

    def see(self, num_embeddings: int, seconds: float) -> None:
        """A batch took this long."""
        each_s = max(seconds, 1e-9) / num_embeddings
        self._each_s = each_s if self._each_s is None else _KEPT * self._each_s + (1 - _KEPT) * each_s
