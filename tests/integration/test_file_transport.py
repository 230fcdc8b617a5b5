"""The file transport's own rules: leftovers, files that are not what they should be."""

import time

import psutil
import pytest

from chiasm.errors import InvalidSettingError, TransferError
from tests.integration.test_transports import noise, start, wait_for


def test_what_is_left_over_in_the_folder_goes_when_it_has_expired(tmp_path):
    killed = start("file", tmp_path)
    addresses = [killed.put(str(ttl_s), b"abc", ttl_s=ttl_s) for ttl_s in (0.01, 600)]
    (tmp_path / (addresses[0] + ".part")).write_bytes((tmp_path / addresses[0]).read_bytes())
    (tmp_path / "chiasm-of-someone-else.tensor").write_text("theirs")
    (tmp_path / addresses[0].replace("chiasm-", "chiasm-0")).mkdir()
    expires_at = time.time() + 0.01
    wait_for(lambda: time.time() > expires_at)
    after = start("file", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == sorted(
        [addresses[1], "chiasm-of-someone-else.tensor"]
    )
    assert bytes(after.get(addresses[1], 3, timeout_s=5)) == b"abc"
    killed.close()
    after.close()


@pytest.mark.parametrize("change", ["cut", "longer", "foreign", "folder", "link"])
def test_a_file_that_is_no_whole_tensor_is_refused(tmp_path, change):
    transport = start("file", tmp_path)
    address = transport.put("a", noise(1, 1000), ttl_s=600)
    path = tmp_path / address
    whole = path.read_bytes()
    path.unlink()
    if change == "folder":
        path.mkdir()
    elif change == "link":
        (tmp_path / "elsewhere").write_bytes(whole)
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_bytes({"cut": whole[:-1], "longer": whole + b"x", "foreign": b"x" + whole[1:]}[change])
    num_fds = psutil.Process().num_fds()
    with pytest.raises(TransferError):
        transport.get(address, 1000, timeout_s=5)
    assert psutil.Process().num_fds() <= num_fds
    transport.close()


@pytest.mark.parametrize("directory", ["", "no/such/folder"])
def test_a_folder_that_is_not_there_is_refused_at_the_start(directory):
    with pytest.raises(InvalidSettingError):
        start("file", directory)
