"""Workers that say what they have lost."""

from collections.abc import Callable, Collection
from typing import Protocol, runtime_checkable

Lost = Callable[[Collection[str] | None], None]
"""Told which starts of prompts a worker has no longer, by their keys; None: it has none at all."""


@runtime_checkable
class ReportsLosses(Protocol):
    """A worker that knows which starts of prompts its cache still has."""

    def report_losses(self, lost: Lost) -> None:
        """Call `lost` from now on, on the event loop, whenever starts are gone."""
        ...
