"""Copies of adapters for vLLM: what it reads is what was checked."""

import errno
from pathlib import Path

import pytest

from chiasm.adapters.files import CONFIG_NAME, WEIGHTS_NAME
from chiasm.errors import AdapterError, LayoutMismatchError
from chiasm.protocol.adapters import AdapterLoad
from chiasm.routing.vllm.adapters import AdapterCopies
from chiasm.settings import AdapterSettings
from tests.unit.adapters.adapter_files import write

CONFIG = {
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 12,
}


@pytest.fixture
def copies(tmp_path):
    settings = AdapterSettings(roots=(str(tmp_path / "allowed"),))
    return AdapterCopies(tmp_path / "copies", CONFIG, {"tiny"}, settings)


@pytest.fixture
def load(tmp_path):
    return AdapterLoad(name="mine", directory=str(write(tmp_path / "allowed" / "mine")))


def test_a_copy_stays_what_was_checked_when_the_files_change(copies, load, tmp_path):
    ref = copies.place(load).ref
    weights = copies.path(ref.revision) / WEIGHTS_NAME
    before = weights.read_bytes()
    write(tmp_path / "allowed" / "mine", lora_alpha=7)
    (tmp_path / "allowed" / "mine" / WEIGHTS_NAME).write_bytes(b"something else")
    copies.ensure(ref)
    assert weights.read_bytes() == before
    assert {path.name for path in copies.path(ref.revision).iterdir()} == {CONFIG_NAME, WEIGHTS_NAME}


def test_changed_files_are_another_revision(copies, load, tmp_path):
    ref = copies.place(load).ref
    again = AdapterCopies(tmp_path / "others", CONFIG, {"tiny"}, AdapterSettings(roots=(str(tmp_path / "allowed"),)))
    write(tmp_path / "allowed" / "mine", lora_alpha=7)
    with pytest.raises(LayoutMismatchError, match="not"):
        again.ensure(ref)
    assert copies.place(load).ref.revision != ref.revision


def test_nothing_is_copied_of_what_is_refused(copies, tmp_path):
    folder = write(tmp_path / "allowed" / "mine", use_dora=True)
    with pytest.raises(AdapterError, match="use_dora"):
        copies.place(AdapterLoad(name="mine", directory=str(folder)))
    assert not (tmp_path / "copies").exists()


def test_a_model_whose_sizes_are_not_known_takes_none(tmp_path, load):
    copies = AdapterCopies(tmp_path / "copies", {}, {"tiny"}, AdapterSettings(roots=(str(tmp_path / "allowed"),)))
    with pytest.raises(AdapterError, match=r"config\.json"):
        copies.place(load)


def test_a_copy_that_fails_leaves_nothing_half_done(copies, load, tmp_path, monkeypatch):
    write_bytes = Path.write_bytes

    def full(path, data):
        if path.name == WEIGHTS_NAME:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_bytes(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(AdapterError, match="No space left"):
            copies.place(load)
    assert list((tmp_path / "copies").iterdir()) == []
    assert copies.path(copies.place(load).ref.revision).is_dir()


def test_of_two_that_copy_at_once_one_copy_stays(copies, load, tmp_path, monkeypatch):
    rename = Path.rename

    def overtaken(path, target):
        monkeypatch.setattr(Path, "rename", rename)
        copies.place(load)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", overtaken)
    ref = copies.place(load).ref
    assert list((tmp_path / "copies").iterdir()) == [copies.path(ref.revision)]
