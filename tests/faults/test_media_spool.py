"""What can happen to a spool from outside: killed servers, planted and damaged files, requests that end midway."""

import asyncio
import os
import signal
import subprocess
import sys

import msgspec
import pytest

from chiasm.errors import MediaDecodeError, OverloadedError, TransferError
from chiasm.media import MediaIngest, MediaReference, MediaSettings, PictureDecoder, Spool, read_source
from chiasm.protocol.media import MediaItem, SpoolSource
from tests.unit.media.pictures import data_url, encode, gradient
from tests.unit.media.preparers import HandsThrough

PICTURES = [encode(gradient(24, 16 + i), "png") for i in range(3)]


@pytest.fixture
def settings(tmp_path):
    return MediaSettings(spool_directory=str(tmp_path / "spool"))


@pytest.fixture
def spool(settings):
    spool = Spool(settings)
    yield spool
    spool.close()


def media_files(spool):
    return sorted(path.name for path in spool.folder.iterdir() if not path.name.startswith("owner-"))


PROGRAM = """
import sys, time
from chiasm.media import MediaSettings, Spool
spool = Spool(MediaSettings(spool_directory=sys.argv[1]))
print(spool.hold("a" * 64, b"picture").name, flush=True)
(spool.folder / (spool._owner.name + "-7-unfinished.new")).write_bytes(b"half")
time.sleep(60)
"""


def test_the_next_start_removes_what_a_killed_server_left_and_nothing_else(settings):
    command = [sys.executable, "-c", PROGRAM, settings.spool_directory]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dead:
        left = dead.stdout.readline().strip()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as alive:
            kept = alive.stdout.readline().strip()
            dead.send_signal(signal.SIGKILL)
            dead.wait(30)
            spool = Spool(settings)
            try:
                names = media_files(spool)
                assert not any(name.startswith(left[:-65].rpartition("-")[0]) for name in names)
                assert kept in names
                assert read_source(SpoolSource(kept, 7), settings) == b"picture"
            finally:
                spool.close()
                alive.kill()


def test_a_server_that_lives_is_not_swept_by_one_that_starts(settings, spool):
    source = spool.hold("a" * 64, b"picture")
    other = Spool(settings)
    assert read_source(source, settings) == b"picture"
    other.close()
    assert read_source(source, settings) == b"picture"


def test_a_planted_link_or_pipe_is_not_opened(settings, spool, tmp_path):
    (tmp_path / "secret").write_bytes(b"secret!")
    (spool.folder / "planted").symlink_to(tmp_path / "secret")
    os.mkfifo(spool.folder / "pipe")
    (spool.folder / "folder").mkdir()
    for name in ("planted", "pipe", "folder", "nothing"):
        with pytest.raises(TransferError, match="no longer holds"):
            read_source(SpoolSource(name, 7), settings)
    for name in ("pipe", "planted"):
        (spool.folder / name).unlink()
    (spool.folder / "folder").rmdir()


@pytest.mark.parametrize("content", [b"pictur", b"pictures", b""])
def test_a_file_of_another_size_is_not_used(settings, spool, content):
    source = spool.hold("a" * 64, b"picture")
    (spool.folder / source.name).write_bytes(content)
    with pytest.raises(TransferError, match=f"has {len(content)} bytes instead of 7"):
        read_source(source, settings)


def references(*pictures):
    return [MediaReference("image", data_url(data), f"/{i}") for i, data in enumerate(pictures)]


async def test_ingest_spools_and_a_closed_lease_leaves_nothing(settings, spool):
    ingest = MediaIngest(settings, None, spool=spool)
    with ingest.lease() as lease:
        items = await ingest.collect(references(*PICTURES, PICTURES[0]), 30, lease=lease)
        assert [read_source(item.source, settings) for item in items] == [*PICTURES, PICTURES[0]]
        assert len(media_files(spool)) == 3
    assert media_files(spool) == []
    await ingest.aclose()


async def test_requests_that_fail_or_leave_midway_leave_no_files(settings, spool):
    ingest = MediaIngest(settings, None, spool=spool)
    bad = MediaReference("image", "data:image/png;base64,AAAA", "/bad")
    for _ in range(5):
        with ingest.lease() as lease, pytest.raises(Exception, match="Media item 3"):
            await ingest.collect([*references(*PICTURES), bad], 30, lease=lease)
        task_lease = ingest.lease()
        task = asyncio.create_task(ingest.collect(references(*PICTURES), 30, lease=task_lease))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        task_lease.close()
    await ingest.aclose()
    for thread in ingest._threads._threads:  # one may still have been writing
        thread.join()
    assert (spool.num_files, spool.num_bytes, media_files(spool)) == (0, 0, [])


async def test_a_full_spool_refuses_the_request_and_keeps_the_others(settings):
    small = msgspec.structs.replace(settings, max_spool_bytes=len(PICTURES[0]) + 1)
    spool = Spool(small)
    ingest = MediaIngest(small, None, spool=spool)
    first, second = ingest.lease(), ingest.lease()
    [item] = await ingest.collect(references(PICTURES[0]), 30, lease=first)
    with pytest.raises(OverloadedError, match="spool holds"):
        await ingest.collect(references(PICTURES[1]), 30, lease=second)
    second.close()
    assert read_source(item.source, small) == PICTURES[0]
    first.close()
    await ingest.aclose()
    spool.close()


def item_of(source, data_index=0):
    return MediaItem(identity="0" * 64, format="png", width=24, height=16 + data_index, source=source)


@pytest.mark.parametrize("kind", ["threads", "processes"])
async def test_decoders_read_the_spool_themselves(settings, spool, kind):
    decoder = PictureDecoder(msgspec.structs.replace(settings, decoder=kind))
    try:
        source = spool.hold("0" * 64, PICTURES[0])
        prepared = await decoder.prepare(item_of(source), HandsThrough())
        assert prepared.arrays["pixels"].shape == (16, 24, 3)
        spool.release(source)
        with pytest.raises(TransferError, match="no longer holds"):
            await decoder.prepare(item_of(source), HandsThrough())
        broken = spool.hold("1" * 64, PICTURES[0][:-30])
        with pytest.raises(MediaDecodeError):
            await decoder.prepare(item_of(broken), HandsThrough())
        assert decoder.num_decoding_pixels == 0
    finally:
        decoder.close()
