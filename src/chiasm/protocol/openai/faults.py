"""Decoding failures as request errors that name the place and never repeat what the caller sent there."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from chiasm.errors import InvalidRequestError
from chiasm.settings.choices import choices_at, said

_LOCATED = re.compile(r"^(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([A-Za-z_0-9]+)|\[(\d+)\]")
_UNKNOWN_FIELD = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_BAD_CHOICE = re.compile(r"^Invalid (enum )?value ")
_TRUNCATED = "Input data was truncated"
_LONE_SURROGATE = re.compile(
    rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}(?:[^\\]|\\[^u]|\\u[^dD]|\\u[dD][^c-fC-F])", re.DOTALL
)
_MAX_NAME_CHARACTERS = 64


def request_fault(
    error: msgspec.DecodeError,
    *,
    known: Iterable[str] = (),
    rename: Mapping[str, str] | None = None,
    kind: Any = None,
    body: bytes | bytearray = b"",
) -> InvalidRequestError:
    """Translate what msgspec found wrong.

    Args:
        error: From `msgspec.json.decode` or `msgspec.convert`.
        known: Names among which the nearest to an unknown one is hinted.
        rename: Field of the checked type -> field of the request, for the pointer.
        kind: The checked type, to hint what is possible where a word is none of it; None: no hint.
        body: What was decoded, where it is JSON: msgspec calls some of it truncated that is not.
    """
    if not isinstance(error, msgspec.ValidationError):
        if "surrogate" in str(error) or (_TRUNCATED in str(error) and _LONE_SURROGATE.search(body)):
            return InvalidRequestError(
                "The body is not valid JSON: a \\u escape is half of a character, a surrogate without the other one",
                hint="Send both halves, as \\ud83d\\ude00, or the character itself in UTF-8",
            )
        return InvalidRequestError(f"The body is not valid JSON: {error}", hint="Send a JSON object, UTF-8 encoded")
    located = _LOCATED.match(str(error))
    assert located is not None
    what, pointer = located["what"], _pointer(located["path"] or "", rename or {})
    if unknown := _UNKNOWN_FIELD.match(what):
        return unknown_field(unknown[1], pointer, known)
    hint = None
    if _BAD_CHOICE.match(what):
        what, hint = "The value is none of those possible here", _possible(kind, located["path"] or "")
    if located["key"]:
        what = f"A key is wrong: {what}"
    return InvalidRequestError(f"{what} (at {pointer or 'the top level'})", hint=hint, param=pointer or None)


def unknown_field(name: str, pointer: str, known: Iterable[str]) -> InvalidRequestError:
    """The error for a field that nobody has heard of; the hint is the nearest known name."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return InvalidRequestError(
        f"Unknown field '{printable(name)}'",
        hint=f"Did you mean '{close[0]}'?" if close else "Remove it; docs/http_api.md lists what is understood",
        param=f"{pointer}/{printable(name)}",
    )


def printable(name: str) -> str:
    """A caller's field name, fit for a message: short, and nothing but printable characters."""
    clean = "".join(c if c.isprintable() else "?" for c in name[:_MAX_NAME_CHARACTERS])
    return clean + ("..." if len(name) > _MAX_NAME_CHARACTERS else "")


def _pointer(path: str, rename: Mapping[str, str]) -> str:
    """JSON pointer of a msgspec path such as `.messages[0].content`; ends where msgspec does not know the key."""
    return "".join(f"/{rename.get(step, step)}" for step in _steps(path))


def _steps(path: str) -> Iterator[str]:
    return (name or index for name, index in _STEP.findall(path.partition("[...]")[0]))


def _possible(kind: Any, path: str) -> str | None:
    """The words that could stand at the place, as a hint."""
    words = said(choices_at(kind, tuple(_steps(path)))) if kind is not None and "[...]" not in path else None
    return f"One of: {words}" if words else None
