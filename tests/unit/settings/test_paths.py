"""Paths in the home of a user whom nobody knows, and others that no file can have, are refused where they are read."""

from pathlib import Path

import pytest

from chiasm.adapters.files import allowed_folder, preloaded
from chiasm.errors import InvalidSettingError
from chiasm.launch.model import model_directory, served_name
from chiasm.launch.processes.folder import watched_folder
from chiasm.launch.vllm.installed import interpreter
from chiasm.launch.vllm.workers_file import read_workers
from chiasm.media.sources import spool_folder
from chiasm.routing.costs.prior import read_prior
from chiasm.settings import AdapterSettings, EngineSettings, MediaSettings
from chiasm.settings.paths import written_path

NOBODY = "~no-such-user-here/folder"
READERS = {
    "routing.costs": read_prior,
    "media.spool_directory": lambda path: spool_folder(MediaSettings(spool_directory=path)),
    "adapters.roots": lambda path: allowed_folder("/srv", AdapterSettings(roots=(path,))),
    "adapters.preload": lambda path: preloaded(AdapterSettings(preload=(f"name={path}",))),
    "engine.model": model_directory,
    "engine.model, for its name": lambda path: served_name(EngineSettings(model=path)),
    "routing.directory": watched_folder,
    "vllm.workers_file": read_workers,
    "vllm.python": interpreter,
}


def test_a_home_is_found():
    assert written_path("~/a", "x") == Path.home() / "a"
    assert written_path("a/~b", "x") == Path("a/~b")


@pytest.mark.parametrize("name", READERS)
def test_a_home_of_nobody_is_said_to_be_one(name):
    with pytest.raises(InvalidSettingError, match="nobody knows where ~no-such-user-here is") as caught:
        READERS[name](NOBODY)
    assert caught.value.message.startswith(name.partition(",")[0])
    assert "in full" in caught.value.hint


@pytest.mark.parametrize("name", READERS)
def test_a_nul_is_said_to_be_one(name):
    with pytest.raises(InvalidSettingError, match="NUL"):
        READERS[name]("a\0b")


def test_homes_are_read_nowhere_else():
    sources = Path(__file__).parents[3] / "src" / "chiasm"
    readers = [path for path in sources.rglob("*.py") if ".expanduser(" in path.read_text("utf-8")]
    assert {str(path.relative_to(sources)) for path in readers} == {"settings/paths.py", "adapters/files.py"}
