"""Threads decode stretches of one video: the same frames in the same order, bounded, and none is left behind."""

import threading
import time

import numpy as np
import pytest

pytest.importorskip("av", reason="the extra video is not installed")

from chiasm.errors import MediaDecodeError
from chiasm.media.video import frames, parallel
from chiasm.media.video.frames import decoded_frames
from chiasm.media.video.header import read_video_header
from chiasm.media.video.parallel import in_order, num_useful_threads, stretches
from chiasm.settings import MediaSettings
from tests.unit.media.video.clips import all_frames, clip

SETTINGS = MediaSettings()
CLIPS = {
    "b-frames": lambda: clip(),
    "short groups": lambda: clip(gop=2, b_frames=3),
    "mkv": lambda: clip(container="matroska"),
    "webm vp9": lambda: clip(30, container="webm", codec="libvpx-vp9"),
    "one keyframe": lambda: clip(gop=1000, b_frames=4),
    "turned": lambda: clip(gop=6, degrees=90),
    "uneven": lambda: clip(6, container="matroska", times_ms=[0, 40, 5000, 5040, 9000, 9100], b_frames=0, gop=2),
}


def num_threads_left():
    return sum(thread.name == "chiasm-video" for thread in threading.enumerate())


@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize("num_threads", [2, 3, 7])
@pytest.mark.parametrize("step", [1, 5, 13])
def test_frames_are_those_of_one_thread(name, num_threads, step):
    data = CLIPS[name]()
    header = read_video_header(data, SETTINGS)
    indices = list(range(1, header.num_frames, step))
    alone = list(decoded_frames(data, header, indices))
    found = list(decoded_frames(data, header, indices, num_threads))
    assert [frame.index for frame in found] == indices
    assert [frame.time_s for frame in found] == [frame.time_s for frame in alone]
    assert all(np.array_equal(one.pixels, two.pixels) for one, two in zip(alone, found, strict=True))
    if name != "turned":
        expected = all_frames(data)
        assert all(np.array_equal(frame.pixels, expected[frame.index]) for frame in found)
    assert num_threads_left() == 0


@pytest.mark.parametrize(("num_threads", "is_beside"), [(1, False), (2, True)])
def test_colors_are_made_beside_the_decoding_of_later_frames_also_with_one_keyframe(
    monkeypatch, num_threads, is_beside
):
    decoding, coloring = set(), set()
    decode, color = frames._Decoder._run, frames._upright

    def run(self, wanted):
        decoding.add(threading.get_ident())
        return decode(self, wanted)

    def upright(frame):
        coloring.add(threading.get_ident())
        return color(frame)

    monkeypatch.setattr(frames._Decoder, "_run", run)
    monkeypatch.setattr(frames, "_upright", upright)
    data = clip(24, gop=1000)
    header = read_video_header(data, SETTINGS)
    assert len(header.keyframe_pts) == 1
    assert len(list(decoded_frames(data, header, range(0, 24, 3), num_threads))) == 8
    assert coloring == {threading.get_ident()}
    assert len(decoding) == 1
    assert (decoding != coloring) == is_beside


def test_stretches_begin_with_keyframes():
    assert stretches([0, 3, 9, 12, 13, 40], [0, 10, 20, 30]) == [[0, 3, 9], [12, 13], [40]]
    assert stretches([0, 3, 12], [5, 10]) == [[0, 3], [12]]
    assert stretches([], [0]) == []


def test_no_more_threads_than_there_is_room_and_work_for():
    assert num_useful_threads([[1], [2]], 1000, 8) == 2
    assert num_useful_threads([[1]] * 9, 60 * 2**20, 8) == 2
    assert num_useful_threads([[1]] * 9, 200 * 2**20, 8) == 1
    assert num_useful_threads([], 1000, 8) == 1


def counted(parts):
    for part in parts:
        yield from part


def test_what_waits_is_bounded(monkeypatch):
    monkeypatch.setattr(parallel, "_MAX_HELD_BYTES", 600)
    made = []

    def decode(parts):
        for number in counted(parts):
            made.append(number)
            yield number

    found = in_order(decode, [[0], list(range(1, 90))], 100, 2)
    assert next(found) == 0
    time.sleep(0.3)
    assert len(made) <= 1 + 3 + 1
    assert list(found) == list(range(1, 90))


def test_closing_ends_the_threads_and_a_failure_comes_in_its_place():
    found = in_order(counted, [[1] * 50, [2] * 50] * 20, 50 * 2**20, 2)
    assert next(found) == 1
    found.close()
    assert num_threads_left() == 0

    def broken(parts):
        for number in counted(parts):
            if number == 3:
                raise MediaDecodeError("broken")
            yield number

    found = in_order(broken, [[1], [2], [3], [4]], 1, 2)
    assert [next(found), next(found)] == [1, 2]
    with pytest.raises(MediaDecodeError, match="broken"):
        next(found)
    assert num_threads_left() == 0


def test_closing_ends_all_threads_at_once():
    together, met = threading.Barrier(3), []

    def decode(parts):
        try:
            while True:
                yield 0
        finally:
            met.append(together.wait(5) >= 0)

    found = in_order(decode, [[0] * 1000] * 3, frame_bytes=2**26, num_threads=3)
    next(found)
    found.close()
    assert met == [True] * 3
    assert num_threads_left() == 0


def test_a_thread_that_says_nothing_more_is_no_endless_wait():
    with pytest.raises(RuntimeError, match="ended without a word"):
        list(in_order(lambda parts: iter(()), [[1], [2]], 1, 2))


def test_damage_is_refused_with_threads_as_without():
    data = clip(48, gop=12)
    header = read_video_header(data, SETTINGS)
    at = data.index(b"mdat") + 4
    bad = data[: at + 2000] + bytes(2000) + data[at + 4000 :]
    outcomes = []
    for num_threads in (1, 2):
        try:
            outcomes.append([frame.index for frame in decoded_frames(bad, header, range(48), num_threads)])
        except MediaDecodeError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]
    assert num_threads_left() == 0
