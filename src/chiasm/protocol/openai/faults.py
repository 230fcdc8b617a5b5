"""Decoding failures as request errors that name the place and never repeat what the caller sent there."""

import difflib
import re
from collections.abc import Iterable, Mapping

import msgspec

from chiasm.errors import InvalidRequestError

_LOCATED = re.compile(r"^(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([A-Za-z_0-9]+)|\[(\d+)\]")
_UNKNOWN_FIELD = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_BAD_CHOICE = re.compile(r"^Invalid (enum )?value ")
_MAX_NAME_CHARACTERS = 64


def request_fault(
    error: msgspec.DecodeError, *, known: Iterable[str] = (), rename: Mapping[str, str] | None = None
) -> InvalidRequestError:
    """Translate what msgspec found wrong.

    Args:
        error: From `msgspec.json.decode` or `msgspec.convert`.
        known: Names among which the nearest to an unknown one is hinted.
        rename: Field of the checked type -> field of the request, for the pointer.
    """
    if not isinstance(error, msgspec.ValidationError):
        return InvalidRequestError(f"The body is not valid JSON: {error}", hint="Send a JSON object, UTF-8 encoded")
    located = _LOCATED.match(str(error))
    assert located is not None
    what, pointer = located["what"], _pointer(located["path"] or "", rename or {})
    if unknown := _UNKNOWN_FIELD.match(what):
        return unknown_field(unknown[1], pointer, known)
    if _BAD_CHOICE.match(what):
        what = "The value is none of those possible here"
    if located["key"]:
        what = f"A key is wrong: {what}"
    return InvalidRequestError(f"{what} (at {pointer or 'the top level'})", param=pointer or None)


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
    steps = []
    for name, index in _STEP.findall(path.partition("[...]")[0]):
        steps.append(rename.get(name, name) if name else index)
    return "".join(f"/{step}" for step in steps)
