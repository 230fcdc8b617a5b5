"""Files and functions stay small enough to be read in one go, and are named after what they hold."""

import ast
import re

import pytest

from tests.architecture.repository import PACKAGE, ROOT, functions, python_files, text_of, tracked_files

MAX_FILE_LINES = 400
MAX_TEST_FILE_LINES = 600
MAX_FUNCTION_LINES = 50
EXCEPTIONS: dict[str, str] = {}
"""`path` or `path:function` -> why it may be longer."""
BANNED_NAMES = re.compile(r"(^|_)(utils?|helpers?|common|misc|manager)($|_)|_v\d+$")

CODE = python_files("src", "tools", "training", "benchmarks", "examples")
C_CODE = sorted(path for path in tracked_files() if path.suffix in {".c", ".h", ".inc"})
TESTS = python_files("tests")


def _name(path):
    return str(path.relative_to(ROOT))


def test_the_files_are_found():
    assert len(CODE) > 20
    assert len(TESTS) > 5


@pytest.mark.parametrize("path", [*CODE, *C_CODE, *TESTS], ids=_name)
def test_files_are_short(path):
    limit = MAX_TEST_FILE_LINES if path in TESTS else MAX_FILE_LINES
    assert len(text_of(path).splitlines()) <= limit or _name(path) in EXCEPTIONS


@pytest.mark.parametrize("path", CODE, ids=_name)
def test_functions_are_short(path):
    found = {f"{_name(path)}:{node.name}": _num_lines(node, path) for node in functions(path)}
    long = {name: lines for name, lines in found.items() if lines > MAX_FUNCTION_LINES}
    assert {name: lines for name, lines in long.items() if name not in EXCEPTIONS} == {}


def _num_lines(node, path):
    """Of a function; of one in the command line without its options and what `--help` says: those are its interface."""
    if "cli" not in path.parts:
        return node.end_lineno - node.lineno + 1
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return node.end_lineno - body[0].lineno + 1 if body else 0


def test_exceptions_are_still_needed():
    names = {_name(path) for path in [*CODE, *TESTS]}
    assert [key for key in EXCEPTIONS if key.partition(":")[0] not in names] == []


def test_modules_are_named_after_what_they_hold():
    names = [p.relative_to(PACKAGE) for p in PACKAGE.rglob("*") if p.suffix == ".py" or p.is_dir()]
    assert [str(name) for name in names if BANNED_NAMES.search(name.stem)] == []


def test_packages_have_no_logic_in_init():
    """An `__init__` is a docstring and exports; the root's lazy `LLM` is the one function."""
    long = [_name(p) for p in python_files("src") if p.name == "__init__.py" and len(text_of(p).splitlines()) > 60]
    assert long == []
