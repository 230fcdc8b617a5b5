"""Sampled frames are exactly those that decoding everything gives, and what is no video says so."""

import builtins

import numpy as np
import pytest

from chiasm.errors import MediaDecodeError, MediaError, MediaTooLargeError, MissingExtraError, UnsupportedMediaError
from chiasm.media.video import frames as frames_module
from chiasm.media.video.container import sniff_video
from chiasm.media.video.frames import decoded_frames, sample_video
from chiasm.media.video.header import read_video_header
from chiasm.media.video.sampling import SamplingRule
from chiasm.settings import MediaSettings

pytest.importorskip("av", reason="the extra video is not installed")

from tests.unit.media.video.clips import all_frames, clip

SETTINGS = MediaSettings()
EVERYTHING = SamplingRule(fps=None)


def taken(data, indices):
    return list(decoded_frames(data, read_video_header(data, SETTINGS), indices))


@pytest.fixture(scope="module", params=["mp4 b-frames", "mp4 short groups", "mkv", "webm vp9", "one keyframe"])
def video(request):
    return {
        "mp4 b-frames": lambda: clip(),
        "mp4 short groups": lambda: clip(gop=2, b_frames=3),
        "mkv": lambda: clip(container="matroska"),
        "webm vp9": lambda: clip(30, container="webm", codec="libvpx-vp9"),
        "one keyframe": lambda: clip(gop=1000, b_frames=4),
    }[request.param]()


@pytest.mark.parametrize("step", [1, 5, 13, 29])
def test_frames_are_those_of_decoding_everything(video, step):
    expected = all_frames(video)
    header = read_video_header(video, SETTINGS)
    assert header.num_frames == len(expected)
    for start in (0, 3):
        indices = list(range(start, len(expected), step))
        found = taken(video, indices)
        assert [frame.index for frame in found] == indices
        for frame in found:
            assert np.array_equal(frame.pixels, expected[frame.index]), f"frame {frame.index}"


def test_facts_come_from_headers_and_packets():
    header = read_video_header(clip(), SETTINGS)
    assert (header.container, header.codec, header.width, header.height) == ("mp4", "h264", 96, 64)
    assert header.num_frames == 48
    assert len(header.keyframe_pts) >= 4
    assert header.duration_s == pytest.approx(2)
    assert header.average_fps == pytest.approx(24)
    webm = read_video_header(clip(10, container="webm", codec="libvpx-vp9"), SETTINGS)
    assert (webm.container, webm.codec) == ("matroska", "vp9")


def test_frames_say_when_they_are_shown():
    header, frames = sample_video(clip(), SamplingRule(fps=2), SETTINGS)
    found = list(frames)
    assert [frame.index for frame in found] == [0, 12, 24, 36]
    assert [frame.time_s for frame in found] == pytest.approx([0, 0.5, 1, 1.5])
    assert header.num_frames == 48


def test_times_of_a_variable_rate_are_its_own():
    times_ms = [0, 40, 80, 1000, 1040, 3000, 3040, 3080]
    data = clip(8, container="matroska", times_ms=times_ms, b_frames=0)
    found = taken(data, [1, 3, 5, 7])
    assert [frame.time_s for frame in found] == pytest.approx([0.04, 1, 3, 3.08])
    assert read_video_header(data, SETTINGS).duration_s == pytest.approx(3.08 * 8 / 7)


def test_fewer_frames_than_asked_are_all_of_them():
    for number in (1, 2, 3):
        _, frames = sample_video(clip(number), SamplingRule(num_frames=8, fps=None, patch_frames=1), SETTINGS)
        assert [frame.index for frame in frames] == list(range(number))


@pytest.mark.parametrize("size", [(96, 64), (98, 62), (50, 66)])
@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_frames_are_upright(degrees, size):
    data = clip(2, degrees=degrees, size=size)
    expected = np.rot90(all_frames(data)[1], degrees // 90)
    assert np.array_equal(taken(data, [1])[0].pixels, expected)


def test_frames_nobody_refers_to_are_not_decoded(monkeypatch):
    data = clip(b_frames=2, gop=1000)
    decoded = []
    original = frames_module._Decoder._run

    def counting(self, wanted):
        class Counting:
            def __init__(self, packet):
                self.packet, self.pts = packet, packet.pts

            def decode(self):
                frames = self.packet.decode()
                decoded.extend(frames)
                return frames

        container = self._container
        self._container = type("C", (), {"demux": lambda _, s: map(Counting, container.demux(s))})()
        yield from original(self, wanted)

    monkeypatch.setattr(frames_module._Decoder, "_run", counting)
    assert len(taken(data, [47])) == 1
    assert len(decoded) < 40


def test_stretches_with_a_keyframe_are_jumped_over(monkeypatch):
    data = clip(gop=4, b_frames=0)
    jumps = []
    original = frames_module._Decoder._seek

    def noted(self, pts):
        jumps.append(pts)
        original(self, pts)

    monkeypatch.setattr(frames_module._Decoder, "_seek", noted)
    expected = all_frames(data)
    found = taken(data, [0, 20, 41])
    assert len(jumps) == 2
    assert all(np.array_equal(frame.pixels, expected[frame.index]) for frame in found)


def test_a_jump_that_misses_is_made_up_for(monkeypatch):
    data = clip(gop=4, b_frames=0)
    original = frames_module._Decoder._seek
    last = read_video_header(data, SETTINGS).keyframe_pts[-1]
    monkeypatch.setattr(frames_module._Decoder, "_seek", lambda self, pts: original(self, last if pts else 0))
    expected = all_frames(data)
    found = taken(data, [0, 20, 30])
    assert [frame.index for frame in found] == [0, 20, 30]
    assert all(np.array_equal(frame.pixels, expected[frame.index]) for frame in found)


def test_frames_that_come_in_another_order_are_refused(monkeypatch):
    data = clip(6, b_frames=0)
    original = frames_module._Decoder._run
    monkeypatch.setattr(frames_module._Decoder, "_run", lambda self, wanted: reversed(list(original(self, wanted))))
    with pytest.raises(MediaDecodeError, match="h264 frame 1 cannot be decoded"):
        taken(data, [1, 3])


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"", UnsupportedMediaError, "no video of a supported container"),
        (b"\xff\xd8\xff" + bytes(64), UnsupportedMediaError, "no video of a supported container"),
        (b"\0\0\0\x20ftypisom" + bytes(64), MediaDecodeError, "mp4 data is broken"),
        (b"\x1a\x45\xdf\xa3" + bytes(64), MediaDecodeError, "matroska data is broken"),
    ],
)
def test_what_is_no_video_says_so(data, error, words):
    with pytest.raises(error, match=words):
        read_video_header(data, SETTINGS)


def test_sound_alone_is_refused():
    with pytest.raises(UnsupportedMediaError, match="sound but no video"):
        read_video_header(clip(sound=True, picture=False), SETTINGS)
    assert read_video_header(clip(4, sound=True), SETTINGS).num_frames == 4


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_video_frames": 47}, "more than 47 frames"),
        ({"max_video_s": 1.5}, "lasts 2 s; the limit is 1.5 s"),
        ({"max_item_pixels": 6000}, "96 x 64 pixels"),
        ({"max_aspect_ratio": 1.2}, "sides differ"),
    ],
)
def test_limits_hold_before_anything_is_decoded(limits, words, monkeypatch):
    monkeypatch.setattr(frames_module, "_Decoder", None)
    with pytest.raises(MediaTooLargeError, match=words):
        sample_video(clip(), EVERYTHING, MediaSettings(**limits))


@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_a_video_that_is_cut_off_is_refused_or_gives_its_beginning(container):
    data = clip(container=container)
    expected = all_frames(data)
    for part in (0.1, 0.5, 0.9, 0.99):
        try:
            _, frames = sample_video(data[: int(len(data) * part)], EVERYTHING, SETTINGS)
            found = list(frames)
        except MediaError:
            continue
        assert all(np.array_equal(frame.pixels, expected[frame.index]) for frame in found[:-8])


def test_without_the_extra_it_is_named(monkeypatch):
    imported = builtins.__import__

    def without_av(name, *args, **kwargs):
        if name == "av":
            raise ImportError
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_av)
    with pytest.raises(MissingExtraError) as caught:
        read_video_header(b"\0\0\0\x20ftypisom" + bytes(64), SETTINGS)
    assert caught.value.hint == "Install it: pip install 'chiasm[video]'"


def test_pictures_in_the_same_container_are_not_videos():
    for brand in (b"avif", b"heic", b"heix", b"mif1"):
        assert sniff_video(b"\0\0\0\x20ftyp" + brand + bytes(20)) is None
    assert sniff_video(b"\0\0\0\x20ftypmsf1\0\0\0\0avismsf1") is None
    assert sniff_video(b"\0\0\0\x20ftypqt  " + bytes(20)) == "mp4"
