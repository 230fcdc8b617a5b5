"""A new plugin package: a small scorer that installs, passes its own tests and is there to be changed."""

import keyword
import re
import sys
from importlib.machinery import PathFinder
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

from chiasm.errors import InvalidSettingError

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_MAX_LETTERS = 60
_FILES = {
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
    "__init__.py.txt": "src/{package}/__init__.py",
    "scorer.py.txt": "src/{package}/scorer.py",
    "inside_vllm.py.txt": "src/{package}/inside_vllm.py",
    "test_scorer.py.txt": "tests/test_scorer.py",
}


def write_plugin_package(name: str, parent: Path) -> list[Path]:
    """Write the package `name` into a new folder of that name; returns its files.

    Raises:
        InvalidSettingError: A name that is none, or taken, or the folder is there or cannot be written.
    """
    package = _package(name)
    words = {
        "distribution": name,
        "package": package,
        "processor": package,
        "class_name": _class_name(name),
    }
    folder = parent / name
    templates = files("chiasm.pooling") / "plugin_template"
    written = []
    try:
        folder.mkdir(parents=True)
        for source, target in _FILES.items():
            path = folder / target.format(package=package)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(Template((templates / source).read_text()).substitute(words))
            written.append(path)
    except OSError as error:
        raise InvalidSettingError(
            f"Cannot write {folder}: {error.strerror}", hint="Choose another name, or another folder with --into"
        ) from error
    return written


def _package(name: str) -> str:
    package = name.replace("-", "_")
    if len(name) > _MAX_LETTERS or not _NAME.fullmatch(name) or keyword.iskeyword(package):
        raise InvalidSettingError(
            f"{name[:_MAX_LETTERS]!r} cannot be the name of a package", hint="Use a name like quality-scorer"
        )
    if package.partition("_")[0] == "chiasm" or find_spec(f"chiasm.pooling.io.{package}") is not None:
        raise InvalidSettingError(f"{name!r} is the name of something that ships", hint="Choose another name")
    if package in sys.stdlib_module_names or PathFinder.find_spec(package) is not None:
        raise InvalidSettingError(
            f"{name!r} is a module that is installed here already: one would hide the other", hint="Choose another name"
        )
    return package


def _class_name(name: str) -> str:
    """It ends in 'Scorer', as nothing does that the templates import or define beside it."""
    joined = "".join(word.capitalize() for word in name.split("-"))
    return joined if joined.endswith("Scorer") else f"{joined}Scorer"
