"""Averages of checkpoints."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from tiny_vlm.merge import WEIGHTS, merge


def checkpoint(folder, **weights):
    folder.mkdir()
    save_file(weights, folder / WEIGHTS)
    (folder / "config.json").write_text(folder.name)
    return folder


def test_weights_are_averaged_and_other_files_are_the_new_ones(tmp_path):
    old = checkpoint(tmp_path / "old", a=torch.zeros(2, dtype=torch.bfloat16))
    new = checkpoint(tmp_path / "new", a=torch.ones(2))
    merge(old, new, 0.75, tmp_path / "out")
    assert load_file(tmp_path / "out" / WEIGHTS)["a"].tolist() == [0.75, 0.75]
    assert (tmp_path / "out" / "config.json").read_text() == "new"


def test_what_cannot_be_averaged_is_refused(tmp_path):
    old, new = checkpoint(tmp_path / "old", a=torch.zeros(2)), checkpoint(tmp_path / "new", a=torch.zeros(3))
    with pytest.raises(SystemExit, match="architectures"):
        merge(old, new, 0.5, tmp_path / "out")
    with pytest.raises(SystemExit, match="between 0 and 1"):
        merge(old, old, 1.5, tmp_path / "out")
    assert not (tmp_path / "out").exists()
