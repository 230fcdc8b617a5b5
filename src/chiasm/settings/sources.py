"""Where settings come from: default < TOML file < environment < command line.

Environment: `CHIASM_<SECTION>__<FIELD>`, for example `CHIASM_GATEWAY__PORT=9000`. Command line: `section.field=value`.
Texts from both are read as TOML values where that works and as plain strings elsewhere: quotes around a string may be
there or not.
"""

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from chiasm.errors import InvalidSettingError, UnknownSettingError
from chiasm.settings.choices import choices_at, said
from chiasm.settings.finite import non_finite
from chiasm.settings.sections import Settings

ENVIRONMENT_PREFIX = "CHIASM_"
SECRET_FIELDS = frozenset(
    {"gateway.api_keys", "gateway.admin_keys", "gateway.store_password", "media.proxy", "routing.worker_token"}
)


class ResolvedSettings(msgspec.Struct, frozen=True):
    """The settings and, for each `section.field`, the name of its source."""

    settings: Settings
    sources: dict[str, str]

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """Yield (name, value, source) for every field; secrets as '***'."""
        for section in Settings.__struct_fields__:
            values = getattr(self.settings, section)
            for field in values.__struct_fields__:
                name = f"{section}.{field}"
                value = getattr(values, field)
                yield name, "***" if name in SECRET_FIELDS and value else value, self.sources.get(name, "default")


def resolve(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Iterable[str] = (),
    values: Mapping[str, Any] | None = None,
) -> ResolvedSettings:
    """Merge all sources into checked settings.

    Args:
        file: TOML file; a missing one is an error, since it was named.
        environment: Defaults to the process's environment.
        overrides: `section.field=value` texts, last one wins.
        values: `section.field` -> typed value, from command-line options; wins over everything.

    Raises:
        UnknownSettingError: A section or field does not exist; the nearest name is in the hint.
        InvalidSettingError: A value has the wrong type or range, or the file is not TOML.
    """
    merged: dict[str, dict[str, Any]] = {}
    sources: dict[str, str] = {}
    for name, value, source in _all_values(file, environment, overrides, values):
        section, field = _known(name)
        merged.setdefault(section, {})[field] = value
        sources[name] = source
    for section, fields in merged.items():
        _check_each(section, fields, sources)
    return ResolvedSettings(msgspec.convert(merged, Settings), sources)


def _all_values(
    file: Path | None,
    environment: Mapping[str, str] | None,
    overrides: Iterable[str],
    values: Mapping[str, Any] | None,
) -> Iterator[tuple[str, Any, str]]:
    if file is not None:
        yield from _from_file(file)
    yield from _from_environment(os.environ if environment is None else environment)
    yield from _from_overrides(overrides)
    for name, value in (values or {}).items():
        yield name, value, "command line"


def _from_file(file: Path) -> Iterator[tuple[str, Any, str]]:
    try:
        document = tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidSettingError(f"Cannot read settings file {file}: {error}") from error
    for section, fields in document.items():
        if not isinstance(fields, dict):
            raise UnknownSettingError(
                f"'{section}' in {file} is not inside a section", hint=f"Put it under one of: {_names(_sections())}"
            )
        for field, value in fields.items():
            yield f"{section}.{field}", value, str(file)


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    for key, text in environment.items():
        if key.startswith(ENVIRONMENT_PREFIX) and "__" in key:
            section, field = key.removeprefix(ENVIRONMENT_PREFIX).lower().split("__", 1)
            yield f"{section}.{field}", _parse(f"{section}.{field}", text), f"environment {key}"


def _from_overrides(overrides: Iterable[str]) -> Iterator[tuple[str, Any, str]]:
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals:
            raise InvalidSettingError(f"'{override}' is not section.field=value", hint="For example gateway.port=9000")
        yield name.strip(), _parse(name.strip(), text), "command line"


def _parse(name: str, text: str) -> Any:
    section, field = _known(name)
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return text if _field_type(section, field) is str and not isinstance(value, str) else value


def _sections() -> tuple[str, ...]:
    return Settings.__struct_fields__


def _fields(section: str) -> tuple[str, ...]:
    return tuple(field.name for field in _section_fields(section).values())


def _section_fields(section: str) -> dict[str, Any]:
    kind = next(f.type for f in msgspec.structs.fields(Settings) if f.name == section)
    return {field.name: field for field in msgspec.structs.fields(kind)}


def _field_type(section: str, field: str) -> Any:
    annotation = _section_fields(section)[field].type
    return getattr(annotation, "__origin__", annotation)


def _known(name: str) -> tuple[str, str]:
    section, _, field = name.partition(".")
    if section not in _sections():
        raise UnknownSettingError(f"Unknown settings section '{section}'", hint=_nearest(section, _sections()))
    if field not in _fields(section):
        raise UnknownSettingError(
            f"Unknown setting '{section}.{field}'", hint=_nearest(field, _fields(section), f"{section}.")
        )
    return section, field


def _nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"Did you mean '{prefix}{close[0]}'?" if close else f"Known: {_names(prefix + n for n in names)}"


def _names(names: Iterable[str]) -> str:
    return ", ".join(names)


def _check_each(section: str, fields: dict[str, Any], sources: dict[str, str]) -> None:
    """Convert field by field, so that the message names the setting and its source."""
    kinds = _section_fields(section)
    for field, value in fields.items():
        name = f"{section}.{field}"
        if (problem := non_finite(value, name)) is not None:
            raise InvalidSettingError(f"{problem} ({sources[name]})")
        try:
            msgspec.convert(value, kinds[field].type)
        except msgspec.ValidationError as error:
            shown = "***" if name in SECRET_FIELDS else repr(value)
            words = said(choices_at(kinds[field].type)) if isinstance(value, str) else None
            raise InvalidSettingError(
                f"{name} = {shown} ({sources[name]}): {error}", hint=f"One of: {words}" if words else None
            ) from error
