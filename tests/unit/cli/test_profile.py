"""What `chiasm profile` says of what it has found."""

from pathlib import Path

import pytest

from chiasm.advisor.profile.interference import Seen
from chiasm.advisor.profile.runs import Profile
from chiasm.cli.profile import _print
from chiasm.simulator.calibration import Calibration


@pytest.mark.parametrize(
    ("takes_pictures", "why"),
    [(False, "The model takes no pictures"), (True, "The server's receipts do not say what encoding takes")],
)
def test_why_a_file_is_of_texts_alone_is_said(monkeypatch, capsys, takes_pictures, why):
    monkeypatch.setenv("COLUMNS", "300")
    found = Profile(calibration=Calibration(), fits={}, beside=Seen(rounds={}), takes_pictures=takes_pictures)
    _print(found, Path("costs.json"))
    assert f"{why}: the file is for traffic of texts alone." in capsys.readouterr().out
