"""Secrets apart from the rest, for settings that travel where secrets must not."""

import json
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from chiasm.errors import InvalidSettingError
from chiasm.settings.sections import Settings
from chiasm.settings.sources import ENVIRONMENT_PREFIX, SECRET_FIELDS, resolve


def secrets_of(settings: Settings) -> dict[str, Any]:
    """The secrets that are set, by `section.field`."""
    found = {}
    for name in sorted(SECRET_FIELDS):
        section, field = name.split(".")
        if value := getattr(getattr(settings, section), field):
            found[name] = value
    return found


def without_secrets(settings: Settings) -> Settings:
    """The same with each secret as if nobody had set it."""
    return _with(settings, {name: type(value)() for name, value in secrets_of(settings).items()})


def with_secrets_from_here(settings: Settings, names: tuple[str, ...]) -> Settings:
    """The same with secrets from this process's environment.

    Raises:
        InvalidSettingError: One that was set where the settings come from is not set here.
    """
    own = secrets_of(resolve().settings)
    for name in names:
        if name not in own:
            raise InvalidSettingError(
                f"{name} is set for the server and not on this node",
                hint=f"Set {_variable(name)} on every node before `ray start`; secrets do not travel through Ray",
            )
    return _with(settings, own)


def hand_down_secrets(settings: Settings) -> None:
    """Put the secrets into this process's environment, for processes that it starts."""
    for name, value in secrets_of(settings).items():
        os.environ[_variable(name)] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper().replace(".", "__")


def _with(settings: Settings, values: Mapping[str, Any]) -> Settings:
    for name, value in values.items():
        section, field = name.split(".")
        changed = msgspec.structs.replace(getattr(settings, section), **{field: value})
        settings = msgspec.structs.replace(settings, **{section: changed})
    return settings
