"""Files that commands write their results to."""

import os
from pathlib import Path

from chiasm.errors import InvalidSettingError


def check_folders(*files: Path | None) -> None:
    """See that files could be written, before the work that is to be in them. Raises `InvalidSettingError`."""
    for file in files:
        if file is None:
            continue
        if not file.absolute().parent.is_dir():
            raise InvalidSettingError(f"There is no folder for '{file}'", hint="Make it first")
        if file.is_dir():
            raise InvalidSettingError(f"'{file}' is a folder", hint="Name a file in it")
        if not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
            raise InvalidSettingError(f"'{file}' cannot be written: Permission denied", hint="Name another one")


def write_file(file: Path, content: str | bytes) -> None:
    """Write text as UTF-8, whatever the system's own encoding is. Raises `InvalidSettingError`."""
    try:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise InvalidSettingError(f"'{file}' cannot be written: {error.strerror}") from error
