"""Videos on their way into a request: facts before decoding, limits, identity, and the arrays in the end."""

import base64

import msgspec
import numpy as np
import pytest

from chiasm.errors import MediaDecodeError, MediaTooLargeError, UnsupportedMediaError
from chiasm.media.decoding import PictureDecoder
from chiasm.media.ingest import MediaIngest
from chiasm.media.prepare.items import plan_of
from chiasm.media.prepare.registry import preparer_for
from chiasm.media.reference import MediaReference
from chiasm.settings import MediaSettings

pytest.importorskip("av", reason="the extra video is not installed")

from tests.unit.media.video.clips import all_frames, clip

DEADLINE_S = 60.0
QWEN3 = {
    "config.json": {"model_type": "qwen3_vl", "video_token_id": 7},
    "preprocessor_config.json": {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 16,
        "size": {"shortest_edge": 4096, "longest_edge": 262144},
    },
}


def model(directory, files):
    for name, content in files.items():
        (directory / name).write_bytes(msgspec.json.encode(content))
    return preparer_for(directory)


@pytest.fixture
def preparer(tmp_path):
    return model(tmp_path, QWEN3)


def reference(data, at=0, **asked):
    url = "data:video/mp4;base64," + base64.b64encode(data).decode()
    return MediaReference("video", url, f"/messages/0/content/{at}/video_url/url", **asked)


async def collected(preparer, *references, **settings):
    ingest = MediaIngest(MediaSettings(**settings), preparer)
    try:
        return await ingest.collect(references, DEADLINE_S)
    finally:
        await ingest.aclose()


async def test_an_item_says_which_frames_are_meant(preparer):
    [item] = await collected(preparer, reference(clip(48)))
    assert (item.kind, item.format, item.width, item.height) == ("video", "mp4", 96, 64)
    assert item.video.num_frames == 48
    assert item.video.fps == 24.0
    assert item.video.indices == (0, 16, 31, 47)  # two a second, at least four
    plan = plan_of(preparer, item)
    assert plan.grid_thw == (2, 4, 6)
    assert plan.num_embeddings == 12
    assert plan.grid_times_s == ((0 + 16 / 24) / 2, (31 / 24 + 47 / 24) / 2)


async def test_other_frames_are_another_medium(preparer):
    data = clip(48)
    items = await collected(
        preparer, reference(data), reference(data, 1), reference(data, 2, num_frames=6), reference(data, 3, fps=2.0)
    )
    names = [item.identity for item in items]
    assert names[0] == names[1] == names[3]
    assert names[2] != names[0]
    assert len(items[2].video.indices) == 6


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
async def test_the_size_is_upright_before_anything_is_decoded(preparer, degrees):
    data = clip(6, degrees=degrees)
    [item] = await collected(preparer, reference(data))
    assert (item.width, item.height) == ((64, 96) if degrees in (90, 270) else (96, 64))
    assert (await prepared(preparer, item)).plan.grid_thw[1:] == ((6, 4) if degrees in (90, 270) else (4, 6))


@pytest.mark.parametrize(
    ("data", "asked", "settings", "error"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(64), {}, {}, UnsupportedMediaError),
        (clip(48)[:600], {}, {}, MediaDecodeError),
        (clip(4, sound=True, picture=False), {}, {}, UnsupportedMediaError),
        (clip(48), {"num_frames": 800}, {}, MediaTooLargeError),
        (clip(48), {"num_frames": 40}, {"max_visual_tokens": 100}, MediaTooLargeError),
        (clip(48), {}, {"max_video_frames": 10}, MediaTooLargeError),
        (clip(48), {}, {"max_video_s": 1.0}, MediaTooLargeError),
        (clip(48), {}, {"max_item_bytes": 500}, MediaTooLargeError),
        (clip(48), {}, {"max_item_pixels": 1000}, MediaTooLargeError),
    ],
)
async def test_what_is_refused_names_the_item(preparer, data, asked, settings, error):
    with pytest.raises(error) as caught:
        await collected(preparer, reference(data, 3, **asked), **settings)
    assert caught.value.item == 0
    assert caught.value.param == "/messages/0/content/3/video_url/url"


async def test_a_model_without_videos_refuses_them(tmp_path):
    clip_model = model(tmp_path, QWEN3 | {"config.json": {"model_type": "qwen3_vl"}})
    with pytest.raises(UnsupportedMediaError, match="no videos"):
        await collected(clip_model, reference(clip(4)))


async def prepared(preparer, item, **settings):
    decoder = PictureDecoder(MediaSettings(**settings))
    try:
        return await decoder.prepare(item, preparer)
    finally:
        decoder.close()


@pytest.mark.parametrize("decoder", ["threads", "processes"])
async def test_arrays_are_those_of_the_meant_frames(preparer, decoder):
    data = clip(9)
    [item] = await collected(preparer, reference(data, num_frames=3))
    assert item.video.indices == (0, 4, 8)
    made = await prepared(preparer, item, decoder=decoder, decode_threads=1)
    frames = all_frames(data)
    expected = preparer.video.prepare((frames[index] for index in (0, 4, 8)), plan_of(preparer, item))
    assert made.plan == expected.plan
    assert np.array_equal(made.pixel_values(), expected.pixel_values())
    patches = made.arrays["pixel_values"].reshape(2, -1, 3, 2, 256)
    assert np.array_equal(patches[1, :, :, 0], patches[1, :, :, 1])  # the last frame stands in for a fourth


async def test_bytes_other_than_announced_are_refused(preparer):
    [item] = await collected(preparer, reference(clip(9)))
    other = msgspec.structs.replace(item, video=msgspec.structs.replace(item.video, num_frames=10))
    with pytest.raises(MediaDecodeError, match="announced"):
        await prepared(preparer, other)
    for indices in ((0, 0, 3), (3, 1)):
        unordered = msgspec.structs.replace(item, video=msgspec.structs.replace(item.video, indices=indices))
        with pytest.raises(MediaDecodeError, match="rising"):
            await prepared(preparer, unordered)
    with pytest.raises(MediaDecodeError, match="header"):
        await prepared(preparer, msgspec.structs.replace(item, width=64))
