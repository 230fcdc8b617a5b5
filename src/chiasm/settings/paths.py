"""Paths that people write: the one place that reads `~` in them."""

from pathlib import Path

from chiasm.errors import InvalidSettingError


def written_path(text: str | Path, name: str) -> Path:
    """The path that a setting or an option `name` means; it need not exist.

    Raises:
        InvalidSettingError: It begins with the home of a user whom this machine does not know, or no file can have it.
    """
    if "\0" in str(text):
        raise InvalidSettingError(f"{name}: a path cannot have a NUL character in it", hint="Write it without")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        user = Path(text).parts[0]
        raise InvalidSettingError(
            f"{name}: {text} cannot be found, as nobody knows where {user} is", hint="Write the path in full, from /"
        ) from error
