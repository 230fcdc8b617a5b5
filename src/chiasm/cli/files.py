"""Files that commands write their results to."""

import os
from pathlib import Path
from stat import S_ISDIR

from chiasm.errors import InvalidSettingError


def check_folders(*files: Path | None) -> None:
    """See that files could be written, before the work that is to be in them. Raises `InvalidSettingError`."""
    for file in files:
        if file is not None:
            try:
                _check(file)
            except OSError as error:  # a folder that may not be looked into, a name that is too long
                raise _unwritable(file, error.strerror) from error


def write_file(file: Path, content: str | bytes) -> None:
    """Write text as UTF-8, whatever the system's own encoding is. Raises `InvalidSettingError`."""
    try:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise _unwritable(file, error.strerror) from error


def _check(file: Path) -> None:
    folder = file.absolute().parent
    if not folder.is_dir():
        raise InvalidSettingError(f"There is no folder for '{file}'", hint="Make it first")
    try:
        mode = file.stat().st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and S_ISDIR(mode):
        raise InvalidSettingError(f"'{file}' is a folder", hint="Name a file in it")
    if not os.access(folder if mode is None else file, os.W_OK):
        raise _unwritable(file, "Permission denied")


def _unwritable(file: Path, reason: str | None) -> InvalidSettingError:
    return InvalidSettingError(f"'{file}' cannot be written: {reason}", hint="Name another one")
