"""What a grid file may say."""

import pytest

from chiasm.bench.grid.spec import read_grid
from chiasm.errors import InvalidSettingError
from tests.architecture.repository import ROOT

HEAD = 'loads = [0.5]\n[[topology]]\nname = "agg"\nserve = []\n'


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "grids").glob("*.toml")), ids=lambda path: path.stem)
def test_the_grids_of_the_repository_are_grids(path):
    spec = read_grid(path)
    assert {"agg", "e-pd", "auto"} <= set(spec.names)
    assert spec.seeds >= 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", "is no grid"),
        ("", "topology"),
        (HEAD + 'colour = "red"', "unknown field"),
        (HEAD + HEAD.partition("\n")[2], "same name"),
        (HEAD.replace("serve = []", ""), "either serve"),
        (HEAD + 'url = "http://x"', "either serve"),
        ("rates = [1.0]\n" + HEAD, "either loads"),
        (HEAD.partition("\n")[2], "either loads"),
        ('baseline = "tp"\n' + HEAD, "is no topology"),
        ('judged = "agg"\n' + HEAD, "same topology"),
        ("seeds = 0\n" + HEAD, ">= 1"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, text, said):
    file = tmp_path / "grid.toml"
    file.write_text(text)
    with pytest.raises(InvalidSettingError, match=said):
        read_grid(file)


def test_a_file_that_is_not_there_is_said(tmp_path):
    for name in (tmp_path / "grid.toml", tmp_path):
        with pytest.raises(InvalidSettingError, match=f"'{name}' cannot be read"):
            read_grid(name)
