"""What `chiasm bench grid` writes down of its own call."""

import sys
from pathlib import Path

from chiasm.cli.bench.grid import _command


def test_the_command_on_the_page_has_no_key_and_no_folder_of_this_machine(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["chiasm", "bench", "grid", "/x/g.toml", "--api-key", "sk-secret", "--resume"])
    assert _command(Path("/x/g.toml"), Path("/y/my results"), 30.0) == (
        "chiasm bench grid g.toml --output 'my results' --minutes 30"
    )
    assert _command(Path("grids/g.toml"), Path("out"), None) == "chiasm bench grid grids/g.toml --output out"
