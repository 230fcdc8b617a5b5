"""The spool's accounting: one file per identity, holds, quota, expiry, leases; and reading what it holds."""

import hashlib
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chiasm.errors import InvalidSettingError, OverloadedError, TransferError
from chiasm.media.sources import read_source, spool_folder
from chiasm.media.spool import Spool
from chiasm.protocol.media import InlineSource, SpoolSource
from chiasm.settings import MediaSettings


def identity(data):
    return hashlib.sha256(data).hexdigest()


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def start(tmp_path, clock):
    opened = []

    def start(**options):
        opened.append(Spool(MediaSettings(**{"spool_directory": str(tmp_path / "spool"), **options}), clock))
        return opened[-1]

    yield start
    for spool in opened:
        if list(spool.folder.iterdir()):
            spool.close()


def settings_of(spool):
    return MediaSettings(spool_directory=str(spool.folder))


def media_files(spool):
    return sorted(path.name for path in spool.folder.iterdir() if not path.name.startswith("owner-"))


def hold(spool, data):
    return spool.hold(identity(data), data)


def test_what_is_held_can_be_read_until_it_is_released(start):
    spool = start()
    source = hold(spool, b"picture")
    assert read_source(source, settings_of(spool)) == b"picture"
    assert (spool.num_files, spool.num_bytes, media_files(spool)) == (1, 7, [source.name])
    spool.release(source)
    assert (spool.num_files, spool.num_bytes, media_files(spool)) == (0, 0, [])
    with pytest.raises(TransferError, match="no longer holds") as caught:
        read_source(source, settings_of(spool))
    assert caught.value.retryable


def test_the_same_picture_of_two_requests_is_one_file_until_both_let_go(start):
    spool = start()
    first, second = hold(spool, b"picture"), hold(spool, b"picture")
    assert first == second
    assert (spool.num_files, spool.num_bytes) == (1, 7)
    spool.release(first)
    assert read_source(second, settings_of(spool)) == b"picture"
    spool.release(second)
    assert media_files(spool) == []
    spool.release(second)  # once too often
    assert (spool.num_files, spool.num_bytes) == (0, 0)


def test_only_this_user_reads_the_files(start):
    spool = start()
    path = spool.folder / hold(spool, b"x").name
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(spool.folder.stat().st_mode) == 0o700


def test_more_than_the_quota_is_refused_and_leaves_no_trace(start):
    spool = start(max_spool_bytes=10)
    first = hold(spool, b"a" * 6)
    with pytest.raises(OverloadedError, match="holds 6 bytes; with 5 more it would exceed 10"):
        hold(spool, b"b" * 5)
    assert hold(spool, b"a" * 6) == first  # takes no room
    hold(spool, b"c" * 4)
    for _ in range(2):
        spool.release(first)
    hold(spool, b"b" * 5)
    assert (spool.num_files, spool.num_bytes) == (2, 9)


def test_files_expire_whoever_counts_on_them(start, clock):
    spool = start(spool_ttl_s=10)
    old = hold(spool, b"old")
    clock.now_s = 6
    fresh = hold(spool, b"fresh")
    clock.now_s = 11
    again = hold(spool, b"old")
    assert again.name != old.name
    with pytest.raises(TransferError):
        read_source(old, settings_of(spool))
    spool.release(old)  # of a request that is late: not the new file
    assert read_source(again, settings_of(spool)) == b"old"
    assert read_source(fresh, settings_of(spool)) == b"fresh"
    clock.now_s = 30
    spool.release(fresh)
    assert (spool.num_files, spool.num_bytes, media_files(spool)) == (0, 0, [])


def test_another_hold_starts_the_time_anew(start, clock):
    spool = start(spool_ttl_s=10)
    source = hold(spool, b"x")
    clock.now_s = 9
    hold(spool, b"x")
    clock.now_s = 15
    spool.release(source)
    assert read_source(source, settings_of(spool)) == b"x"


def test_a_lease_lets_go_of_everything_once_also_of_what_comes_late(start):
    spool = start()
    other = hold(spool, b"shared")
    with spool.lease() as lease:
        for data in (b"shared", b"own", b"own"):
            lease.hold(identity(data), data)
        assert spool.num_files == 2
    assert media_files(spool) == [other.name]
    lease.close()
    lease.hold(identity(b"late"), b"late")
    assert media_files(spool) == [other.name]


def test_a_full_file_system_is_said_to_be_full(start, monkeypatch):
    spool = start()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("chiasm.media.spool.os.fdopen", full)
        with pytest.raises(OverloadedError, match="file system of the spool is full"):
            hold(spool, b"x")
    assert (spool.num_files, spool.num_bytes, media_files(spool)) == (0, 0, [])
    assert read_source(hold(spool, b"x"), settings_of(spool)) == b"x"


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60))
def test_holds_and_files_always_agree(tmp_path_factory, steps):
    spool = Spool(MediaSettings(spool_directory=str(tmp_path_factory.mktemp("spool"))))
    held = []
    for picture, is_hold in steps:
        data = b"p" * (picture + 1)
        if is_hold:
            held.append(hold(spool, data))
        elif held:
            spool.release(held.pop(picture % len(held)))
        sources = set(held)
        assert spool.num_files == len(sources)
        assert spool.num_bytes == sum(source.num_bytes for source in sources)
        assert media_files(spool) == sorted(source.name for source in sources)
    spool.close()


def test_holds_of_many_threads_at_once(start):
    spool = start()
    pictures = [bytes([i]) * 10_000 for i in range(4)]

    def once(number):
        data = pictures[number % 4]
        source = hold(spool, data)
        content = read_source(source, settings_of(spool))
        spool.release(source)
        return content == data

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(once, range(400)))
    assert (spool.num_files, spool.num_bytes, media_files(spool)) == (0, 0, [])


def test_closing_removes_everything(start):
    spool = start()
    hold(spool, b"x")
    spool.close()
    assert list(spool.folder.iterdir()) == []


def test_without_a_name_the_folder_is_this_users_in_memory():
    folder = spool_folder(MediaSettings())
    assert folder.name == f"chiasm-spool-{os.geteuid()}"
    assert folder.parent in (Path("/dev/shm"), Path("/tmp"), Path(os.environ.get("TMPDIR", "/tmp")))


def test_a_folder_that_others_may_write_to_is_refused(tmp_path):
    folder = tmp_path / "spool"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(InvalidSettingError, match="not safe"):
        Spool(MediaSettings(spool_directory=str(folder)))
    with pytest.raises(InvalidSettingError, match="cannot be made"):
        Spool(MediaSettings(spool_directory="/proc/nowhere"))


def test_inline_sources_are_their_bytes():
    assert read_source(InlineSource(b"x"), MediaSettings()) == b"x"


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", "", ".", "A", "x\0", "a" * 129])
def test_a_name_is_never_a_path(tmp_path, name):
    (tmp_path / "secret").write_bytes(b"x")
    (tmp_path / "spool").mkdir()
    with pytest.raises(TransferError, match="malformed"):
        read_source(SpoolSource(name, 1), MediaSettings(spool_directory=str(tmp_path / "spool")))
