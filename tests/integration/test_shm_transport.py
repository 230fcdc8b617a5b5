"""Shared memory's own rules: views and copies, whose files are read, what a full or missing /dev/shm does."""

import fcntl
import os

import numpy as np
import pytest

from chiasm.connectors.shm import arena
from chiasm.connectors.shm.transport import ShmTransport
from chiasm.errors import InvalidSettingError, OverloadedError, TransferError
from tests.integration.test_transports import MIB, noise


@pytest.mark.parametrize(
    ("max_bytes", "num_bytes", "num_views"),
    [(64 * MIB, MIB, 8), (256 * MIB, MIB // 8, 64), (MIB, MIB // 4, 1), (MIB, MIB // 16, 0)],
)
def test_many_views_become_copies_and_come_back(max_bytes, num_bytes, num_views):
    ours, other = ShmTransport(max_bytes=max_bytes), ShmTransport(max_bytes=MIB)
    num_tensors = min(num_views + 12, max_bytes // num_bytes)
    try:
        addresses = [ours.put(str(n), noise(n, num_bytes), ttl_s=60) for n in range(num_tensors)]
        taken = [other.get(address, num_bytes, timeout_s=5) for address in addresses]
        for number in range(num_tensors):
            ours.drop(str(number))
        assert len(ours._producer._lent) == num_views
        assert all(bytes(data) == noise(n, num_bytes) for n, data in enumerate(taken))
        del taken
        for number in range(num_views // 16 + 1):
            ours.put("next", bytes([number]), ttl_s=60)
        assert not ours._producer._lent
        assert bytes(other.get(ours.put("again", b"abc", ttl_s=60), 3, timeout_s=5)) == b"abc"
    finally:
        other.close()
        ours.close()


def test_whatever_is_made_of_a_view_keeps_its_memory_from_being_used_again():
    ours = ShmTransport(max_bytes=4 * MIB)
    try:
        taken = ours.get(ours.put("a", noise(1, MIB), ttl_s=60), MIB, timeout_s=5)
        ours.drop("a")
        array = np.frombuffer(taken, np.uint16)[5:].reshape(-1, 1)
        del taken
        ours.put("b", noise(2, MIB), ttl_s=60)
        assert array.tobytes() == noise(1, MIB)[10:]
        assert len(ours._producer._lent) == 1
        del array
        ours.put("c", b"abc", ttl_s=60)
        assert not ours._producer._lent
    finally:
        ours.close()


def lost(memory, slot):
    arena.clear_slot(memory, slot)


def damaged(memory, slot):
    _, offset, _, _ = arena.read_slot(memory, slot)
    memory[offset] ^= 1


@pytest.mark.parametrize("harm", [lost, damaged])
def test_what_was_harmed_from_outside_is_put_anew(harm):
    ours = ShmTransport(max_bytes=4 * MIB)
    try:
        address = ours.put("a", noise(1, MIB), ttl_s=60)
        assert ours.put("a", noise(1, MIB), ttl_s=60) == address
        harm(ours._producer._memory, arena.parse_address(address).slot)
        again = ours.put("a", noise(1, MIB), ttl_s=60)
        assert again != address
        assert bytes(ours.get(again, MIB, timeout_s=5)) == noise(1, MIB)
    finally:
        ours.close()


def test_an_open_failure_is_a_transfer_error(monkeypatch):
    ours = ShmTransport(max_bytes=MIB)
    try:
        address = ours.put("a", b"abc", ttl_s=60)

        def refuse(*_):
            raise OSError(24, "Too many open files")

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", refuse)
            with pytest.raises(TransferError, match="Too many open files"):
                ours.get(address, 3, timeout_s=5)
        assert bytes(ours.get(address, 3, timeout_s=5)) == b"abc"
        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "fcntl", refuse)
            with pytest.raises(TransferError, match="cannot be locked"):
                ours.get(address, 3, timeout_s=5)
        assert bytes(ours.get(address, 3, timeout_s=5)) == b"abc"
    finally:
        ours.close()


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


@pytest.mark.parametrize("size", [0, 1, MIB, 3 * MIB])
def test_bytes_of_every_size_arrive(size):
    ours = ShmTransport(max_bytes=8 * MIB)
    try:
        assert bytes(ours.get(ours.put("a", noise(1, size), ttl_s=60), size, timeout_s=5)) == noise(1, size)
    finally:
        ours.close()


def test_what_is_made_of_a_view_has_no_lease_to_end():
    ours = ShmTransport(max_bytes=4 * MIB)
    try:
        taken = ours.get(ours.put("a", noise(1, MIB), ttl_s=60), MIB, timeout_s=5)
        part = taken.obj[:10]
        del part
        ours.drop("a")
        ours.put("b", noise(2, MIB), ttl_s=60)
        assert bytes(taken) == noise(1, MIB)
    finally:
        ours.close()
