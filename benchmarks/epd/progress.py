"""What was measured so far, one line each, so that a run that ends early can go on."""

import json
from pathlib import Path
from typing import Any


class Progress:
    """Rows in a file. Without `resume` an older file is put aside."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not resume:
            path.rename(path.with_suffix(path.suffix + ".old"))
        self.rows = [json.loads(line) for line in _whole_lines(path)] if path.exists() else []

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row at once."""
        self.rows.append(row)
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def found(self, **fields: Any) -> list[dict[str, Any]]:
        """The rows that have these fields."""
        return [row for row in self.rows if all(row.get(name) == value for name, value in fields.items())]


def _whole_lines(path: Path) -> list[str]:
    """All but a last line that was being written when the run ended; that one is cut off."""
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    return whole.splitlines()
