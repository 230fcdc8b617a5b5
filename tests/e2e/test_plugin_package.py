"""A package that `chiasm plugin new` writes: installed by pip, its own tests pass, its scorer is served by its name."""

import json
import os
import subprocess
import sys
import urllib.request
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chiasm.cli.app import app
from chiasm.launch.local import background_server
from chiasm.settings import resolve
from tests.numeric.minilm import directory

RUN_TIMEOUT_S = 240  # on a machine that has other work


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """(folder of the package, folder into which pip has installed it)."""
    parent = tmp_path_factory.mktemp("plugin")
    result = CliRunner().invoke(app, ["plugin", "new", "quality-scorer", "--into", str(parent), "--json"])
    assert result.exit_code == 0, result.output
    made = json.loads(result.output)
    assert made["processor"] == "quality_scorer"
    assert all(Path(one).is_file() for one in made["files"])
    target = parent / "installed"
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    run(sys.executable, "-m", "pip", "install", *options, "--target", target, made["folder"])
    return parent / "quality-scorer", target


def run(*command, **environment):
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_its_own_tests_pass_and_can_fail(package):
    folder, _ = package
    options = (
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        folder / "pyproject.toml",
        "-W",
        "ignore::pytest.PytestDeprecationWarning",
    )
    said = run(sys.executable, "-m", "pytest", *options, folder / "tests")
    assert "passed" in said
    scorer = folder / "src/quality_scorer/scorer.py"
    whole = scorer.read_text()
    scorer.write_text(whole.replace("ranked(of_passages, 1)[0]", "0"))
    try:
        with pytest.raises(AssertionError, match="test_an_item_is_as_good_as_its_best_passage"):
            run(sys.executable, "-m", "pytest", *options, folder / "tests")
    finally:
        scorer.write_text(whole)


def test_it_is_served_by_its_name(package, monkeypatch):
    monkeypatch.syspath_prepend(package[1])
    overrides = [f"engine.model={directory()}", "gateway.port=0", 'pooling.io_processors=["quality_scorer"]']
    settings = resolve(environment={}, overrides=overrides).settings
    items = [
        {"id": "fish", "passages": ["Fish swim in the sea."]},
        {"id": "paris", "passages": ["It rains.", "Paris is the capital of France."]},
    ]
    body = {"task": "plugin", "data": {"query": "What is the capital of France?", "items": items}}
    with background_server(settings, lambda what, share: None) as server:
        request = urllib.request.Request(f"{server.address}/pooling", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as response:
            results = json.loads(response.read())["data"]["results"]
    assert [(one["id"], one["passage"]) for one in results] == [("paris", 1), ("fish", 0)]


def test_vllm_finds_where_its_class_is(package, monkeypatch):
    monkeypatch.syspath_prepend(package[1])
    (point,) = entry_points(group="vllm.io_processor_plugins", name="quality_scorer")
    assert point.load()() == "quality_scorer.inside_vllm.QualityScorerInVllm"
    assert (package[1] / "quality_scorer" / "inside_vllm.py").is_file()
