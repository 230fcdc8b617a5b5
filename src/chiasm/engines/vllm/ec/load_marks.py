"""How a consumer's workers tell its scheduler at once that a checked embedding could not be loaded, or to forget.

vLLM hands a worker's report over after it has sent the step's tokens on their way: too late for those of this step. A
mark is an empty folder, since making one takes neither memory nor an open file, of which the worker may have run out.
"""

import os
from contextlib import suppress
from pathlib import Path

from chiasm.engines.vllm.ec.engine_folder import engine_folder, file_name

EVERYTHING = "everything"
"""What is marked, in place of an identity, when all is to be forgotten."""


def marks_folder(directory: str, engine: str) -> Path:
    """Where an engine's marks are; its scheduler owns the folder."""
    return engine_folder(directory, f"{engine}/loads")


class LoadMarks:
    """Marks by identity. Harmless where the folder is gone: then the report, which comes later, is what counts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, identity: str) -> None:
        """Say that the embedding could not be loaded."""
        with suppress(OSError):
            os.mkdir(self._path(identity))  # noqa: PTH102 - no object more than needed where memory may be short

    def is_set(self, identity: str) -> bool:
        """Whether a worker said so."""
        return os.access(self._path(identity), os.F_OK)

    def clear(self, identity: str) -> None:
        """It has been taken note of."""
        with suppress(OSError):
            os.rmdir(self._path(identity))  # noqa: PTH106 - as above

    def _path(self, identity: str) -> str:
        return f"{self._folder}/{file_name(identity)}"
