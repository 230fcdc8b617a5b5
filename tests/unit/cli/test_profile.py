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


@pytest.mark.parametrize(("stall_s", "said"), [(0.0, "was not seen"), (0.0042, "stand still for 4.2 ms")])
def test_a_stall_that_was_not_seen_is_no_figure(monkeypatch, capsys, stall_s, said):
    monkeypatch.setenv("COLUMNS", "300")
    _print(Profile(calibration=Calibration(stall_s=stall_s), fits={}, beside=Seen(rounds={})), Path("costs.json"))
    printed = capsys.readouterr().out
    assert said in printed
    assert "0.0 ms" not in printed
