"""Shared memory's own rules: views and copies, whose files are read, what a full or missing /dev/shm does."""

import gc
import os

import psutil
import pytest

from chiasm.connectors.shm import arena
from chiasm.connectors.shm.transport import ShmTransport
from chiasm.errors import InvalidSettingError, OverloadedError, TransferError
from tests.integration.test_transports import MIB, noise


def test_many_views_become_copies_and_come_back(tmp_path):
    ours, other = ShmTransport(max_bytes=64 * MIB), ShmTransport(max_bytes=MIB)
    try:
        addresses = [ours.put(str(n), noise(n, MIB), ttl_s=60) for n in range(20)]
        gc.collect()
        num_fds = psutil.Process().num_fds()
        taken = [other.get(address, MIB, timeout_s=5) for address in addresses]
        assert num_fds + 8 <= psutil.Process().num_fds() <= num_fds + 10
        for number in range(20):
            ours.drop(str(number))
        assert len(ours._producer._lent) == 8
        assert all(bytes(data) == noise(n, MIB) for n, data in enumerate(taken))
        del taken
        ours.put("next", b"x", ttl_s=60)
        assert not ours._producer._lent
        assert bytes(other.get(ours.put("again", noise(1, MIB), ttl_s=60), MIB, timeout_s=5)) == noise(1, MIB)
    finally:
        other.close()
        ours.close()
    assert psutil.Process().num_fds() < num_fds


def test_views_in_use_by_too_many_are_an_overload_not_a_wrong_answer(tmp_path):
    ours = ShmTransport(max_bytes=MIB)
    readers = [ShmTransport(max_bytes=MIB) for _ in range(3)]
    try:
        taken = []
        for number, reader in enumerate(readers[:2]):
            taken.append(reader.get(ours.put(str(number), noise(number, MIB), ttl_s=60), MIB, timeout_s=5))
            ours.drop(str(number))
        with pytest.raises(OverloadedError, match="still in use"):
            ours.put("third", noise(3, MIB), ttl_s=60)
        assert [bytes(data) for data in taken] == [noise(0, MIB), noise(1, MIB)]
        del taken[0]
        assert bytes(readers[2].get(ours.put("third", noise(3, MIB), ttl_s=60), MIB, timeout_s=5)) == noise(3, MIB)
    finally:
        for transport in (ours, *readers):
            transport.close()


@pytest.mark.parametrize("change", ["public", "symlink", "folder", "small", "foreign"])
def test_shared_memory_that_is_no_private_arena_is_not_read(change):
    path = arena.FOLDER / f"chiasm-{os.geteuid()}-1-{os.urandom(8).hex()}"
    target = arena.FOLDER / f"target-{os.urandom(8).hex()}"
    ours = ShmTransport(max_bytes=MIB)
    try:
        if change == "symlink":
            target.write_bytes(bytes(8192))
            target.chmod(0o600)
            path.symlink_to(target)
        elif change == "folder":
            path.mkdir(0o700)
        else:
            path.write_bytes(b"chiasmA1" + bytes(8 if change == "small" else 8184))
            path.chmod(0o644 if change == "public" else 0o600)
            if change == "foreign":
                path.write_bytes(b"other" + bytes(8187))
        with pytest.raises(TransferError):
            ours.get(f"{path.name}/0/1", 1, timeout_s=5)
    finally:
        ours.close()
        for made in (path, target):
            if made.is_dir():
                made.rmdir()
            else:
                made.unlink(missing_ok=True)


def test_a_system_without_shared_memory_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(arena, "FOLDER", tmp_path / "missing")
    with pytest.raises(InvalidSettingError) as caught:
        ShmTransport(max_bytes=MIB)
    assert "tcp" in caught.value.hint


def test_full_shared_memory_is_an_overload_and_the_producer_goes_on(monkeypatch):
    ours = ShmTransport(max_bytes=64 * MIB)
    try:

        def refuse(*_):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", refuse)
            with pytest.raises(OverloadedError, match="shared memory left"):
                ours.put("big", bytes(20 * MIB), ttl_s=60)
            assert bytes(ours.get(ours.put("small", noise(1, MIB), ttl_s=60), MIB, timeout_s=5)) == noise(1, MIB)
        ours.put("big", bytes(20 * MIB), ttl_s=60)
        assert ours.num_offered == 2
    finally:
        ours.close()
