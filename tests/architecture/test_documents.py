"""Documents name things that exist: modules, paths, links, commands, dependencies. Generated pages are current."""

import ast
import re
import shlex
import tomllib

import pytest

from chiasm.cli.app import app
from chiasm.settings import resolve
from tests.architecture.repository import ROOT, code_spans, fenced_blocks, resolves, text_of, tracked_files
from tools import reference_pages

DOCUMENTS = sorted(
    path
    for path in tracked_files()
    if path.suffix == ".md" and (path.parent in (ROOT, ROOT / "docs") or ROOT / "docs" in path.parents)
)
# Decision records and the changelog tell what was true at their time; they may name what is gone.
CURRENT = [path for path in DOCUMENTS if "adr" not in path.parts and path.name != "CHANGELOG.md"]
FOLDERS = ("src/", "docs/", "tests/", "tools/", "scripts/", "training/", "benchmarks/", "examples/", ".ci/")


def _name(path):
    return str(path.relative_to(ROOT))


def test_the_pages_are_there():
    names = {_name(path) for path in CURRENT}
    assert {"README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/glossary.md", "docs/dependencies.md"} <= names


@pytest.mark.parametrize("path", CURRENT, ids=_name)
def test_dotted_names_exist(path):
    names = [span for span in code_spans(text_of(path)) if re.fullmatch(r"chiasm(\.\w+)+", span)]
    assert [name for name in names if not name.endswith(".toml") and not resolves(name)] == []


@pytest.mark.parametrize("path", CURRENT, ids=_name)
def test_settings_exist(path):
    known = {name for name, _, _ in resolve(environment={}).rows()}
    sections = "|".join({name.split(".")[0] for name in known})
    names = re.findall(rf"(?<![\w./])((?:{sections})\.[a-z_]+)(?![\w.(])", " ".join(code_spans(text_of(path))))
    assert [name for name in names if name not in known] == []


@pytest.mark.parametrize("path", CURRENT, ids=_name)
def test_paths_exist(path):
    spans = [span for span in code_spans(text_of(path)) if span.startswith(FOLDERS) and " " not in span]
    paths = [span.split("::")[0] for span in spans if not re.search(r"[<>A-Z{]{2,}|NNNN", span)]
    assert [name for name in paths if not any(ROOT.glob(name.rstrip("/")))] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_links_lead_somewhere(path):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text_of(path))
    local = [target for target in targets if not re.match(r"[a-z]+:", target)]
    assert [target for target in local if not (path.parent / target).exists()] == []


def _command_lines(path):
    lines = "\n".join(fenced_blocks(text_of(path), "console", "bash", "sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(line.removeprefix("$ "), comments=True) for line in lines if line.strip()]


@pytest.mark.parametrize("path", CURRENT, ids=_name)
def test_chiasm_commands_and_their_options_exist(path):
    import typer

    group = typer.main.get_command(app)
    wrong = []
    for words in _command_lines(path):
        if not words or words[0].split("/")[-1] != "chiasm":
            continue
        command = group
        for word in words[1:]:
            command = getattr(command, "commands", {}).get(word, command)
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        options = [word.split("=")[0] for word in words if word.startswith("--")]
        if command is group or [option for option in options if option not in known | {"--help"}]:
            wrong.append(" ".join(words))
    assert wrong == []


@pytest.mark.parametrize("path", CURRENT, ids=_name)
def test_make_targets_exist(path):
    targets = set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), flags=re.MULTILINE))
    used = [words[1] for words in _command_lines(path) if words[:1] == ["make"] and len(words) > 1]
    used += [span.split()[1] for span in code_spans(text_of(path)) if re.match(r"make [a-z-]+", span)]
    assert [target for target in used if target not in targets] == []


@pytest.mark.parametrize("path", CURRENT, ids=_name)
def test_python_examples_import_what_exists(path):
    for block in fenced_blocks(text_of(path), "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("chiasm"):
                assert all(resolves(f"{node.module}.{alias.name}") for alias in node.names), ast.unparse(node)


def test_generated_pages_are_current():
    assert reference_pages.stale_pages() == []


def test_no_generated_page_is_left_over():
    assert {path.name for path in reference_pages.FOLDER.glob("*.md")} == set(reference_pages.PAGES)


def _requirement_names(lines):
    return {re.match(r"[A-Za-z0-9_.-]+", line).group().lower().replace("_", "-") for line in lines}


def test_dependencies_page_lists_exactly_the_dependencies():
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))
    lists = [project["project"]["dependencies"], *project["project"]["optional-dependencies"].values()]
    wanted = set().union(*map(_requirement_names, [*lists, *project["dependency-groups"].values()]))
    rows = re.findall(r"^\| ((?:`[\w.-]+`(?:, )?)+) \|", text_of(ROOT / "docs" / "dependencies.md"), flags=re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([\w.-]+)`", row)}
    assert listed == wanted


MACHINE_PATHS = re.compile(
    r"(?<![\w.])/(root|work|home|tmp|Users)/|\.\./shared|\bshared/(facts|checkpoints|prototypes)\b"
)


@pytest.mark.parametrize("path", tracked_files(), ids=_name)
def test_no_tracked_file_names_a_machines_paths(path):
    if path.samefile(__file__):
        return
    assert MACHINE_PATHS.findall(text_of(path)) == []
