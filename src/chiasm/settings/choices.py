"""Which words a type takes at a place, for messages about one that it does not take."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from msgspec import inspect


def choices_at(kind: Any, steps: Sequence[str] = ()) -> tuple[str, ...]:
    """The words that `kind` takes where `steps` lead: names of fields, and numbers in lists. Empty: any, or unknown."""
    places = [_described(kind)]
    for step in steps:
        places = [below for place in places for below in _below(place, step)]
    return tuple(dict.fromkeys(word for place in places for word in _words(place)))


def said(choices: Iterable[str]) -> str | None:
    """The words as a hint; None where there are none."""
    return ", ".join(f"'{one}'" for one in choices) or None


@lru_cache(64)
def _described(kind: Any) -> inspect.Type:
    """A large type takes a millisecond, and a client may be wrong as often as it likes."""
    return inspect.type_info(kind)


def _below(place: inspect.Type, step: str) -> Iterator[inspect.Type]:
    if isinstance(place, inspect.Metadata):
        yield from _below(place.type, step)
    elif isinstance(place, inspect.UnionType):
        for one in place.types:
            yield from _below(one, step)
    elif isinstance(place, inspect.StructType):
        yield from (one.type for one in place.fields if one.encode_name == step)
        if step == place.tag_field and isinstance(place.tag, str):
            yield inspect.LiteralType((place.tag,))
    elif isinstance(place, inspect.CollectionType) and step.isdigit():
        yield place.item_type


def _words(place: inspect.Type) -> Iterator[str]:
    if isinstance(place, inspect.Metadata):
        yield from _words(place.type)
    elif isinstance(place, inspect.UnionType):
        for one in place.types:
            yield from _words(one)
    elif isinstance(place, inspect.LiteralType):
        yield from (one for one in place.values if isinstance(one, str))
