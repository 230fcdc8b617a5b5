"""Headers of videos and AVIF are read in decoder processes: the same outcome, and a crash is one failed item."""

import os
import signal

import pytest

pytest.importorskip("av", reason="the extra video is not installed")

from chiasm.errors import MediaDecodeError, MediaError, MediaTooLargeError
from chiasm.media.ingest import MediaIngest, MediaReference
from chiasm.media.isolation import pool as pool_module
from chiasm.settings import MediaSettings
from tests.faults.media_battery.videos import VIDEOS
from tests.faults.test_media_isolation import SHORT_S, program, until_gone
from tests.unit.media.pictures import data_url, encode, gradient
from tests.unit.media.video.clips import clip

TAKEN = b"\0\0\0\x0c\x81\xa4type\xa5taken"
FILES = ["mp4 turned", "webm vp9", "mkv of uneven times", "mp4 of sound only", "mp4 of noise", "mp4 of 4 billion times"]


@pytest.fixture
async def start():
    opened = []

    def start(**options):
        opened.append(MediaIngest(MediaSettings(decode_threads=1, **options), None))
        return opened[-1]

    yield start
    for ingest in opened:
        await ingest.aclose()


async def collected(ingest, data, kind="video"):
    try:
        return await ingest.collect([MediaReference(kind, data_url(data, "video/mp4"), "/0")], 60)
    except MediaError as error:
        return error.code, error.message, error.hint, error.item, error.param


async def test_facts_and_refusals_are_those_of_threads(start):
    apart, here = start(decoder="processes"), start()
    for name in FILES:
        data = VIDEOS[name][1]()
        assert await collected(apart, data) == await collected(here, data), name
    assert len(apart._processes.idle_pids) == 1
    assert apart._processes.num_replaced == 0


async def test_the_library_is_not_used_here(start, monkeypatch):
    def refused(*_):
        raise AssertionError("a video was opened in this process")

    monkeypatch.setattr("chiasm.media.inspect.read_video_header", refused)
    [item] = await collected(start(decoder="processes"), clip(6))
    assert (item.kind, item.width, item.height, item.video.num_frames) == ("video", 96, 64, 6)
    with pytest.raises(AssertionError):
        await collected(start(), clip(6))


@pytest.mark.parametrize("data", [encode(gradient(), "avif"), encode(gradient(), "avif")[:90]], ids=["whole", "cut"])
async def test_avif_is_read_there_too(start, monkeypatch, data):
    here = await collected(start(), data, "image")

    def refused(*_):
        raise AssertionError("AVIF was opened in this process")

    monkeypatch.setattr("chiasm.media.picture.header._read_avif", refused)
    apart = start(decoder="processes")
    assert await collected(apart, data, "image") == here
    assert len(apart._processes.idle_pids) == 1


async def test_other_pictures_start_no_process(start):
    ingest = start(decoder="processes")
    [item] = await collected(ingest, encode(gradient(), "png"), "image")
    assert item.width == 24
    assert ingest._processes.idle_pids == []


BREAKS = {
    "crash": ("os.kill(os.getpid(), 11)", "crashed on this picture: Segmentation fault"),
    "nonsense": ("s.sendall(b'\\xff' * 9)", "gave no usable reply"),
    "hang": ("time.sleep(60)", f"took longer than {SHORT_S:g} s"),
}


@pytest.mark.parametrize("name", BREAKS)
async def test_a_process_that_fails_is_one_failed_item(start, monkeypatch, name):
    step, cause = BREAKS[name]
    ingest = start(decoder="processes", decode_timeout_s=SHORT_S)
    data = clip(2)
    # One that ends before it has all of the job has taken none, whatever it says.
    whole = ["n = int.from_bytes(s.recv(3, socket.MSG_WAITALL), 'big')", f"s.recv(n + {len(data)}, socket.MSG_WAITALL)"]
    steps = [*whole, f"s.sendall({TAKEN!r})", "import os", step, "s.recv(9999)"]
    monkeypatch.setattr(pool_module, "_PROGRAM", program(*steps))
    with pytest.raises(MediaDecodeError, match=cause) as caught:
        await ingest.collect([MediaReference("video", data_url(data, "video/mp4"), "/0")], 60)
    assert caught.value.item == 0
    assert ingest._processes.num_replaced == 1


async def test_a_process_that_was_killed_gives_way_to_the_next(start):
    ingest = start(decoder="processes")
    first = await collected(ingest, clip(6))
    [pid] = ingest._processes.idle_pids
    os.kill(pid, signal.SIGKILL)
    until_gone(pid)
    assert await collected(ingest, clip(6)) == first


async def test_memory_is_limited_and_closing_ends_the_processes(start):
    ingest = start(decoder="processes", max_decoder_bytes=16 * 2**20)
    with pytest.raises(MediaTooLargeError, match="memory"):
        await ingest.collect([MediaReference("video", data_url(clip(6) + bytes(10 * 2**20), "video/mp4"), "/0")], 60)
    [pid] = ingest._processes.idle_pids
    await ingest.aclose()
    until_gone(pid)
