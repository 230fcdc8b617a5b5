"""Which of Chiasm's compiled code this installation has, and what computes where it has none."""

import importlib
import logging
from types import ModuleType
from typing import NamedTuple

from chiasm.media.kernels.registry import BUILD_HINT
from chiasm.settings import Settings

logger = logging.getLogger(__name__)
_USUAL_HEAD_DIM = 64


class Part(NamedTuple):
    """One of the extensions.

    Attributes:
        what: What it is for.
        kernels: The instruction set that it uses here; None where it is not there, or not for this processor.
        instead: What computes then.
    """

    what: str
    kernels: str | None
    instead: str

    def __str__(self) -> str:
        return f"{self.what} native ({self.kernels})" if self.kernels else f"{self.what} by {self.instead}"


def picture_code() -> Part:
    """What prepares pictures."""
    native = _extension("chiasm.media.kernels._native")
    return Part("pictures", None if native is None else native.names()[0], "Pillow and numpy")


def model_code() -> Part:
    """What computes models of the embedded engine. Does without torch."""
    native = _extension("chiasm.engines.embedded.decoder._native")
    return Part("models", None if native is None else native.kernels_for(_USUAL_HEAD_DIM, "") or None, "torch")


def log_compiled(settings: Settings) -> None:
    """Say in a line which code is native of what these settings use, and if some is not, what to do."""
    parts = [picture_code()]
    if settings.engine.kind == "embedded" and settings.engine.decoder != "torch":
        parts.append(model_code())
    found = ", ".join(map(str, parts))
    if all(part.kernels for part in parts):
        logger.info("Compiled code: %s", found)
    else:
        logger.warning("Compiled code is missing, which takes several times as long: %s. %s", found, BUILD_HINT)


def _extension(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:  # no compiler, or one that is too old, when Chiasm was installed
        return None
