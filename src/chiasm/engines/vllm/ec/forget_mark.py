"""How a consumer's workers tell its scheduler to forget: an empty folder in memory, which outlives the call."""

import os
from contextlib import suppress
from pathlib import Path

from chiasm.engines.vllm.ec.engine_folder import engine_folder

_NAME = "everything"


def mark_folder(directory: str, engine: str) -> Path:
    """Where an engine's mark is; its scheduler owns the folder."""
    return engine_folder(directory, f"{engine}/loads")


class ForgetMark:
    """Set by any worker, cleared by the scheduler. Harmless where the folder is gone."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME

    def set(self) -> None:
        """Say that everything is to be forgotten."""
        with suppress(OSError):
            self._path.mkdir()

    def is_set(self) -> bool:
        """Whether that was said, and was not done yet."""
        return os.access(self._path, os.F_OK)

    def clear(self) -> None:
        """It has been done."""
        with suppress(OSError):
            self._path.rmdir()
