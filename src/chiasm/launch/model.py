"""Which model directory is meant, and what it is called."""

from importlib.resources import files
from pathlib import Path

from chiasm.errors import EngineStartError
from chiasm.settings import EngineSettings

PACKAGED_MODEL = "tiny_vlm"


def model_directory(setting: str) -> Path:
    """The directory of `engine.model`; empty means the model that ships with Chiasm.

    Raises:
        EngineStartError: It is not a model directory.
    """
    directory = Path(setting).expanduser() if setting else Path(str(files("chiasm") / "models" / PACKAGED_MODEL))
    if not (directory / "config.json").is_file():
        raise EngineStartError(
            f"{directory} is not a model directory: it has no config.json",
            hint="Name a local directory in Hugging Face format, or none for the packaged tiny model.",
        )
    return directory


def served_name(engine: EngineSettings) -> str:
    """Model name in the API."""
    return engine.served_name or (Path(engine.model).expanduser().resolve().name if engine.model else PACKAGED_MODEL)
