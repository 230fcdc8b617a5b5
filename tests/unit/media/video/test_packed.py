"""Frames of videos as files: what was packed comes out, and nothing that is not true."""

import msgspec
import numpy as np
import pytest

from chiasm.errors import MediaDecodeError, UnsupportedMediaError
from chiasm.media.prepare.qwen_video import QwenVideoPreparer
from chiasm.media.video.packed import PackedVideo, pack_video, unpack_video
from chiasm.protocol.media import VideoSample

SAMPLE = VideoSample(num_frames=9, fps=24.0, indices=(0, 4, 8))
FRAMES = np.random.default_rng(1).integers(0, 256, (3, 64, 96, 3), np.uint8)
SIZE = {"shortest_edge": 32 * 32, "longest_edge": 2**20}


def packed(**fields):
    return pack_video(msgspec.structs.replace(PackedVideo(SAMPLE, FRAMES), **fields))


def test_what_was_packed_comes_out_and_can_be_written_to():
    found = unpack_video(packed())
    assert found.sample == SAMPLE
    assert np.array_equal(found.frames, FRAMES)
    found.frames[0] = 0


@pytest.mark.parametrize("data", [b"", b"\x00\x00\x00\x18ftypmp42", b"chiasm-frames/2\n"])
def test_an_encoded_video_is_not_decoded(data):
    with pytest.raises(UnsupportedMediaError):
        unpack_video(data)


def test_a_file_that_does_not_hold_what_it_says_is_refused():
    data = packed()
    start = len(b"chiasm-frames/1\n")
    for broken in (
        data[:-1],
        data + b"\0",
        data[: start + 2],
        data[:start] + b"\xff\xff\xff\xff" + data[start + 4 :],
        data.replace(b'"shape":[3,64,96,3]', b'"shape":[3,96,96,2]'),
        data.replace(b'"shape":[3,64,96,3]', b'"shape":[0,64,96,3]'),
        packed(sample=msgspec.structs.replace(SAMPLE, indices=(0, 4))),
        packed(sample=msgspec.structs.replace(SAMPLE, fps=0.0)),
    ):
        with pytest.raises(MediaDecodeError):
            unpack_video(broken)


@pytest.mark.parametrize("is_qwen3", [False, True])
@pytest.mark.parametrize("number", [1, 2, 5])
def test_frames_of_a_prepared_video_are_its_patches_put_together_again(is_qwen3, number):
    preparer = QwenVideoPreparer({"size": SIZE}, is_qwen3=is_qwen3)
    frames = np.random.default_rng(number).integers(0, 256, (number, 100, 140, 3), np.uint8)
    sample = VideoSample(num_frames=number, fps=24.0, indices=tuple(range(number)))
    prepared = preparer.prepare(frames, preparer.plan(140, 100, sample))
    found = preparer.frames(prepared, number)
    width, height = prepared.plan.resized
    assert found.shape == (number, height, width, 3)
    again = preparer.prepare(found, preparer.plan(width, height, sample))
    assert again.plan.resized == (width, height), "nothing is left to be resized"
    assert np.array_equal(again.arrays["pixel_values"], prepared.arrays["pixel_values"])
