"""Cores are kept awake for as long as a measurement takes."""

import struct
from pathlib import Path

import pytest

from chiasm.bench.awake import cores_awake
from chiasm.errors import InvalidSettingError


def names_of_open_files():
    """Of this process; what has been closed since it was listed is left out."""
    return {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}


def test_no_latency_is_asked_for_while_the_block_runs(tmp_path):
    file = tmp_path / "latency"
    file.touch()
    with cores_awake(file):
        assert struct.unpack("=i", file.read_bytes()) == (0,)
        assert str(file) in names_of_open_files()
    assert str(file) not in names_of_open_files()


def test_the_file_is_closed_after_a_failure(tmp_path):
    file = tmp_path / "latency"
    file.touch()
    with pytest.raises(RuntimeError), cores_awake(file):
        raise RuntimeError
    assert str(file) not in names_of_open_files()


def test_a_system_that_does_not_allow_it_is_said(tmp_path):
    with pytest.raises(InvalidSettingError, match="cannot be kept awake") as caught, cores_awake(tmp_path / "none"):
        pass
    assert "root" in str(caught.value.hint)
