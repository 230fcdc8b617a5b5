"""Which model directory is meant, and its name in the API."""

import pytest

from chiasm.errors import EngineStartError
from chiasm.launch.model import model_directory, served_name
from chiasm.settings import EngineSettings


def test_none_is_the_packaged_model():
    assert (model_directory("") / "model.safetensors").is_file()
    assert served_name(EngineSettings()) == "tiny_vlm"


def test_a_directory_is_called_by_its_name(tmp_path, monkeypatch):
    directory = tmp_path / "my-model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    assert model_directory(str(directory)) == directory
    assert served_name(EngineSettings(model=f"{directory}/")) == "my-model"
    assert served_name(EngineSettings(model=str(directory), served_name="short")) == "short"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert model_directory("~/my-model") == directory
    monkeypatch.chdir(directory)
    assert served_name(EngineSettings(model=".")) == "my-model"


@pytest.mark.parametrize("name", ["none", "file", "."])
def test_what_is_no_model_directory(tmp_path, name):
    (tmp_path / "file").write_text("x")
    with pytest.raises(EngineStartError, match=r"config\.json"):
        model_directory(str(tmp_path / name))
