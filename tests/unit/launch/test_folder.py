"""Folders of workers' sockets: private, short-lived or watched."""

import pytest

from chiasm.errors import InvalidSettingError
from chiasm.launch.processes.folder import own_folder, registered, watched_folder


def test_a_folder_of_ones_own_is_private_and_goes_with_the_block():
    with own_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "a.sock").touch()
    assert not folder.exists()


def test_a_watched_folder_is_made_private(tmp_path):
    folder = watched_folder(str(tmp_path / "deep" / "workers"))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert watched_folder(str(folder)) == folder


def test_a_folder_that_others_may_write_to_is_refused(tmp_path):
    tmp_path.chmod(0o770)
    with pytest.raises(InvalidSettingError, match="not safe"):
        watched_folder(str(tmp_path))


def test_what_is_no_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidSettingError, match=r"routing\.directory"):
        watched_folder(str(tmp_path / "file"))


def test_whoever_has_a_socket_there_is_registered(tmp_path):
    for name in ("b.sock", "a.sock", "notes.txt"):
        (tmp_path / name).touch()
    assert registered(tmp_path) == {"a": f"unix:{tmp_path}/a.sock", "b": f"unix:{tmp_path}/b.sock"}
