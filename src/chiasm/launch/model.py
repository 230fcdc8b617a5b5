"""Which model directory is meant, and what it is called."""

from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from chiasm.errors import EngineStartError
from chiasm.media.prepare.base import ImagePreparer
from chiasm.media.prepare.registry import preparer_for
from chiasm.settings import EngineSettings
from chiasm.settings.paths import written_path

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PACKAGED_MODEL = "tiny_vlm"


def model_directory(setting: str) -> Path:
    """The directory of `engine.model`; empty means the model that ships with Chiasm.

    Raises:
        EngineStartError: It is not a model directory.
        InvalidSettingError: It lies in the home of nobody known.
    """
    directory = (
        written_path(setting, "engine.model") if setting else Path(str(files("chiasm") / "models" / PACKAGED_MODEL))
    )
    if not (directory / "config.json").is_file():
        raise EngineStartError(
            f"{directory} is not a model directory: it has no config.json",
            hint="Name a local directory in Hugging Face format, or none for the packaged tiny model.",
        )
    return directory


def served_name(engine: EngineSettings) -> str:
    """Model name in the API. Raises `InvalidSettingError` for a model in the home of nobody known."""
    if engine.served_name or not engine.model:
        return engine.served_name or PACKAGED_MODEL
    return written_path(engine.model, "engine.model").resolve().name


def preparer_of(directory: Path) -> ImagePreparer | None:
    """How a model wants pictures prepared, from its files alone and without torch; None for a text-only model.

    Raises:
        UnsupportedModelError: No preparer for its image processor.
    """
    return preparer_for(directory, _TokenCounter(directory))


class _TokenCounter:
    """Counts tokens of a text; loads the tokenizer when it is first asked. Few models need it."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "tokenizer.json"

    def __call__(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    @cached_property
    def _tokenizer(self) -> "Tokenizer":
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self._file))
