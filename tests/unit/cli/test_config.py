"""`chiasm config show`."""

import json

from typer.testing import CliRunner

from chiasm.cli.app import app


def show(*words, **environment):
    return CliRunner().invoke(app, ["config", "show", *words], env=environment)


def test_values_and_their_sources(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text("[media]\nmax_items = 3\n")
    shown = show("--json", "--config", str(file), "--set", "gateway.port=7", CHIASM_GATEWAY__HOST="::1")
    rows = {row["name"]: (row["value"], row["source"]) for row in json.loads(shown.stdout)}
    assert rows["gateway.port"] == (7, "command line")
    assert rows["gateway.host"] == ("::1", "environment CHIASM_GATEWAY__HOST")
    assert rows["media.max_items"] == (3, str(file))
    assert rows["engine.dtype"] == ("float32", "default")


def test_the_table_has_every_setting():
    table = show().stdout
    rows = json.loads(show("--json").stdout)
    assert all(row["name"] in table for row in rows)


def test_keys_are_not_printed():
    shown = show("--set", "gateway.api_keys=['secret']").stdout
    assert "secret" not in shown
    assert "***" in shown
