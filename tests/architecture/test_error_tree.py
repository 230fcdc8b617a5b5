"""The error tree is drawn in a docstring and printed in a table; both must be the classes."""

import re

from chiasm import errors
from chiasm.errors import ChiasmError
from tests.architecture.repository import ROOT


def _classes(cls: type[ChiasmError], depth: int = 0) -> list[tuple[int, str]]:
    own = [child for child in cls.__subclasses__() if child.__module__ == errors.__name__]
    return [(depth, cls.__name__), *(row for child in own for row in _classes(child, depth + 1))]


def test_the_drawing_is_the_tree():
    drawing = re.findall(r"^( *)(\w+Error)$", errors.__doc__, flags=re.MULTILINE)
    assert [(len(indent) // 2, name) for indent, name in drawing] == _classes(ChiasmError)


def test_the_table_is_the_tree():
    page = (ROOT / "docs" / "reference" / "errors.md").read_text("utf-8")
    rows = re.findall(r"^\| ((?:- )*)`(\w+)` \| `(\w+)` \| \d+ \|", page, flags=re.MULTILINE)
    assert [(indent.count("-"), name) for indent, name, _ in rows] == _classes(ChiasmError)
    assert all(getattr(errors, name).code == code for _, name, code in rows)


def test_no_room_adds_to_the_tree():
    def everywhere(cls):
        return [cls, *(c for child in cls.__subclasses__() for c in everywhere(child))]

    assert {cls.__module__ for cls in everywhere(ChiasmError) if cls.__module__.startswith("chiasm.")} == {
        "chiasm.errors"
    }
