"""What became of each simulated request: columns, since there may be millions."""

from array import array

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.float64]


class Record:
    """Times of requests that ended well, in the order of their ends. Times in seconds of the simulation.

    Attributes:
        class_names: Classes, in the order of their first end; `classes` are indices into it.
        paths: How many requests went which way.
        failures: How many ended with which error, by class and code; they are in no column.
    """

    def __init__(self) -> None:
        self.class_names: list[str] = []
        self.paths: dict[str, int] = {}
        self.failures: dict[tuple[str, str], int] = {}
        self.failed_at_s = array("d")
        self._columns = {name: array("d") for name in ("at", "first", "end", "tokens", "class")}

    def __len__(self) -> int:
        return len(self._columns["at"])

    def add(self, class_name: str, path: str, at_s: float, first_s: float, end_s: float, num_tokens: int) -> None:
        """A request has had its last token."""
        if class_name not in self.class_names:
            self.class_names.append(class_name)
        self.paths[path] = self.paths.get(path, 0) + 1
        values = (at_s, first_s, end_s, num_tokens, self.class_names.index(class_name))
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)

    def fail(self, class_name: str, code: str, at_s: float) -> None:
        """A request that came then has ended with an error."""
        self.failures[class_name, code] = self.failures.get((class_name, code), 0) + 1
        self.failed_at_s.append(at_s)

    @property
    def at_s(self) -> Column:
        """When each came."""
        return self._column("at")

    @property
    def ttft_s(self) -> Column:
        """Time to the first token of each."""
        return self._column("first") - self._column("at")

    @property
    def e2el_s(self) -> Column:
        """Time to the last token of each."""
        return self._column("end") - self._column("at")

    @property
    def tpot_s(self) -> Column:
        """Time per token after the first; NaN for answers of one token."""
        later = self._column("tokens") - 1.0
        found = np.full(len(later), np.nan)
        np.divide(self._column("end") - self._column("first"), later, out=found, where=later > 0)
        return found

    @property
    def num_output_tokens(self) -> Column:
        """Length of each answer."""
        return self._column("tokens")

    @property
    def classes(self) -> Column:
        """Index of each one's class in `class_names`."""
        return self._column("class")

    def _column(self, name: str) -> Column:
        column: Column = np.array(self._columns[name], dtype=np.float64)
        return column
