"""Numbers that are none: TOML files and command lines can say inf and nan, and no bound keeps both out."""

import math
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

T = TypeVar("T")


def non_finite(value: object, name: str = "") -> str | None:
    """Say where in a value of lists and tables the first number is that is infinite or none at all; None: nowhere."""
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{name or 'the number'} is {value}, which is no finite number"
    found = (non_finite(one, f"{name}.{key}" if name else str(key)) for key, one in _parts(value))
    return next((what for what in found if what is not None), None)


def _parts(value: object) -> Iterator[tuple[object, object]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        yield from enumerate(value)


def decode_toml(data: bytes, kind: type[T]) -> T:
    """Decode TOML without infinite numbers. Raises `msgspec.DecodeError` and `UnicodeDecodeError`."""
    document = msgspec.toml.decode(data)
    found = msgspec.convert(document, kind)
    if (problem := non_finite(document)) is not None:
        raise msgspec.ValidationError(problem)
    return found
