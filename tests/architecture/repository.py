"""What the architecture tests look at: the tracked files, the package's modules, and the names that documents use."""

import ast
import importlib
import pkgutil
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import chiasm

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "src" / "chiasm"
CODE_FOLDERS = ("src", "tests", "tools", "training", "benchmarks", "examples", "docs")


@cache
def tracked_files() -> list[Path]:
    """Files under version control that exist; in a tree without git, all files of the project's folders."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=30
    )
    if listing.returncode == 0 and listing.stdout:
        paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    else:
        paths = [
            path for folder in CODE_FOLDERS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts
        ]
    return [path for path in paths if path.is_file()]


def python_files(*folders: str) -> list[Path]:
    """Tracked Python files below the folders, sorted."""
    roots = [ROOT / folder for folder in folders]
    return sorted(p for p in tracked_files() if p.suffix == ".py" and any(p.is_relative_to(root) for root in roots))


def text_of(path: Path) -> str:
    """A tracked file as text; binary files read as empty."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        return ""


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a file."""
    for node in ast.walk(ast.parse(text_of(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def modules(room: str) -> list[str]:
    """A room's importable modules, itself first. Empty when the room does not exist."""
    if room == "errors":
        return ["chiasm.errors"]
    folder = PACKAGE / room
    if not (folder / "__init__.py").exists():
        return []
    prefix = f"chiasm.{room}."
    return [prefix[:-1], *(found.name for found in pkgutil.walk_packages([str(folder)], prefix))]


def rooms() -> set[str]:
    """Direct children of the package that hold code."""
    return {name for _, name, _ in pkgutil.iter_modules(chiasm.__path__)} - {"__main__"}


def resolves(dotted: str) -> bool:
    """Whether `chiasm.a.b.C.method` names something that exists."""
    parts = dotted.split(".")
    found: object = None
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        return _has_attributes(found, parts[end:])
    return False


def _has_attributes(found: object, names: list[str]) -> bool:
    for name in names:
        if not hasattr(found, name) and name not in getattr(found, "__annotations__", {}):
            return False
        found = getattr(found, name, None)
    return True


def code_spans(markdown: str) -> list[str]:
    """What stands between single backticks, outside fenced blocks."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", re.sub(r"^```.*?^```", "", markdown, flags=re.DOTALL | re.MULTILINE))


def fenced_blocks(markdown: str, *languages: str) -> list[str]:
    """Bodies of fenced blocks in one of the languages."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", markdown, flags=re.DOTALL | re.MULTILINE)
    return [body for language, body in blocks if language in languages]
